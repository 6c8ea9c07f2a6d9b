package agent

import (
	"strings"
	"testing"
)

func TestThinking(t *testing.T) {
	opened, bare := thinking{opened: true, bare: true}, thinking{bare: true}
	for _, c := range []struct {
		how           thinking
		text          string
		thought, rest string
		closed        bool
	}{
		{thinking{}, "answer", "", "answer", true},
		{thinking{}, "<think>\nhm\n</think>\n\nanswer", "hm", "\n\nanswer", true},
		{thinking{}, "answer</think>more", "", "answer</think>more", true},
		{thinking{}, "It writes <think> and then thinks.", "", "It writes <think> and then thinks.", true},
		{thinking{}, "<think>never ends", "never ends", "", false},
		{thinking{}, "<think>A</think>Use `</think>` to end it.", "A", "Use `</think>` to end it.", true},
		{thinking{}, "<think>'</think>' ends it</think>so", "'</think>' ends it", "so", true},
		{thinking{}, `<think>"yes"</think>No`, `"yes"`, "No", true},
		{opened, "hm</think>answer", "hm", "answer", true},
		{opened, "<think>hm</think>answer", "hm", "answer", true},
		{opened, "never ends", "never ends", "", false},
		{bare, "The sum is 3, so\n</think>\n\nThe answer is 3.", "The sum is 3, so", "\n\nThe answer is 3.", true},
		{bare, "Use `</think>` to end it.", "", "Use `</think>` to end it.", true},
		{bare, "x</think>y</think>z", "x", "y</think>z", true},
	} {
		if thought, rest, closed := c.how.split(c.text); thought != c.thought || rest != c.rest || closed != c.closed {
			t.Errorf("%q (%+v): %q, %q, %v", c.text, c.how, thought, rest, closed)
		}
	}
}

// FuzzPartial: whatever follows, a turn's thinking and text begin with what was certain before.
func FuzzPartial(f *testing.F) {
	for _, seed := range []string{"", "a", "<think>a</think>b", "<think>'</think>'</think>", "a</think>`</think>`", `{"name": "f"}`, "a<tool_call>{}</tool_call>", " \n<thin"} {
		f.Add(seed, true, true, false)
		f.Add(seed, false, true, true)
		f.Add(seed, false, false, true)
	}
	f.Fuzz(func(t *testing.T, text string, opened, bare, offered bool) {
		for _, calls := range []callFormat{hermes, mistral, llama} {
			template := &Template{thinks: thinking{opened, bare}, calls: calls}
			thought, rest, _ := template.thinks.split(text)
			for i := range text {
				if p := template.Partial(text[:i], offered); !strings.HasPrefix(thought, p.Thinking) || !strings.HasPrefix(rest, p.Text) || p.Thought && p.Thinking != thought {
					t.Fatalf("%q: after %q %+v, in the end %q, %q", text, text[:i], p, thought, rest)
				}
			}
		}
	})
}
