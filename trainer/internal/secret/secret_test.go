package secret

import "testing"

func TestFromEnv(t *testing.T) {
	t.Setenv("SECRET_TEST", "abc")
	t.Setenv("SECRET_TEST_EMPTY", "")
	for variable, want := range map[string]string{"": "", "SECRET_TEST": "abc"} {
		if got, err := FromEnv("token_env", variable); got != want || err != nil {
			t.Errorf("%q: got %q and %v, want %q", variable, got, err, want)
		}
	}
	for _, variable := range []string{"SECRET_TEST_EMPTY", "SECRET_TEST_MISSING"} {
		want := "token_env: the environment variable " + variable + " is not set"
		if got, err := FromEnv("token_env", variable); got != "" || err == nil || err.Error() != want {
			t.Errorf("%q: got %q and %v, want the error %q", variable, got, err, want)
		}
	}
}

func TestEqual(t *testing.T) {
	for _, c := range []struct {
		got, want string
		equal     bool
	}{{"a", "a", true}, {"a", "b", false}, {"", "a", false}, {"a", "", false}, {"", "", false}} {
		if Equal(c.got, c.want) != c.equal {
			t.Errorf("Equal(%q, %q) is not %v", c.got, c.want, c.equal)
		}
	}
}
