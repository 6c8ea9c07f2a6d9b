package trainer

import (
	"strings"
	"testing"
)

func TestParseChat(t *testing.T) {
	message := func(role string) string { return `{"role": "` + role + `", "content": "x"}` }
	for roles, want := range map[string]string{
		"user assistant":                "",
		"user assistant tool assistant": "",
		"user assistant assistant":      "",
		"user":                          "at least",
		"":                              "at least",
		"system user assistant":         `message 1 has the role "system"`,
		"user tool assistant":           `message 2 has the role "tool"`,
		"user assistant user assistant": `message 3 has the role "user"`,
		"assistant":                     `message 1 has the role "assistant"`,
	} {
		var messages []string
		for role := range strings.FieldsSeq(roles) {
			messages = append(messages, message(role))
		}
		d, err := parseChat([]byte(`{"agent": "a", "messages": [` + strings.Join(messages, ", ") + `]}`))
		switch {
		case want == "" && (err != nil || len(d.Segments) != len(messages) || !d.Segments[1].Sampled):
			t.Errorf("%q: %+v, %v", roles, d, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want an error with %q", roles, err, want)
		}
	}
}
