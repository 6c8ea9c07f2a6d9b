package texts

import "testing"

func TestExcerpt(t *testing.T) {
	for _, c := range []struct {
		text, want string
		most       int
	}{
		{"", "", 0},
		{"abc", "abc", 3},
		{"abcd", "abc…", 3},
		{"aéé", "aé…", 4},
		{"a\xff", "a\xff", 2},
		{"a\xffbc", "ab…", 3},
	} {
		if got := Excerpt(c.text, c.most); got != c.want {
			t.Errorf("Excerpt(%q, %d): got %q, want %q", c.text, c.most, got, c.want)
		}
	}
}
