package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
)

func TestThinking(t *testing.T) {
	plain, opened, bare := plainThinking, plainThinking, plainThinking
	opened.opened, opened.bare, bare.bare = true, true, true
	calls := bare
	calls.call = "<tool_call>"
	for _, c := range []struct {
		how           thinking
		text          string
		thought, rest string
		closed        bool
	}{
		{plain, "answer", "", "answer", true},
		{plain, "<think>\nhm\n</think>\n\nanswer", "hm", "\n\nanswer", true},
		{plain, "answer</think>more", "", "answer</think>more", true},
		{plain, "It writes <think> and then thinks.", "", "It writes <think> and then thinks.", true},
		{plain, "<think>never ends", "never ends", "", false},
		{plain, "<think>A</think>Use `</think>` to end it.", "A", "Use `</think>` to end it.", true},
		{plain, "<think>'</think>' ends it</think>so", "'</think>' ends it", "so", true},
		{plain, `<think>"yes"</think>No`, `"yes"`, "No", true},
		{opened, "hm</think>answer", "hm", "answer", true},
		{opened, "<think>hm</think>answer", "hm", "answer", true},
		{opened, "never ends", "never ends", "", false},
		{bare, "The sum is 3, so\n</think>\n\nThe answer is 3.", "The sum is 3, so", "\n\nThe answer is 3.", true},
		{bare, "Use `</think>` to end it.", "", "Use `</think>` to end it.", true},
		{bare, "An example:\n<think>\nhm\n</think>\nDone.", "", "An example:\n<think>\nhm\n</think>\nDone.", true},
		{calls, "\n<tool_call>end it with </think>", "", "\n<tool_call>end it with </think>", true},
		{calls, "I call.</think><tool_call>", "I call.", "<tool_call>", true},
		{bare, "x</think>y</think>z", "x", "y</think>z", true},
	} {
		if thought, rest, closed := c.how.split(c.text); thought != c.thought || rest != c.rest || closed != c.closed {
			t.Errorf("%q (%+v): got thinking %q, rest %q, closed %v", c.text, c.how, thought, rest, closed)
		}
	}
}

// formats returns notations of calls, learned from a template with the given text around name and arguments.
func formats(t testing.TB) (out []callformat.Format) {
	t.Helper()
	for _, notation := range []string{"<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>", "[TOOL_CALLS]%s[ARGS]%s", `{"name": "%s", "parameters": %s}`,
		"<calls><call>%s<sep>%s</call>", "<|channel|>commentary to=functions.%s<|message|>%s<|call|>"} {
		f, err := callformat.InferFormat(func(content string, calls ...callformat.Printed) (string, error) {
			for _, c := range calls {
				arguments := map[string]any{}
				for _, a := range c.Arguments {
					arguments[a.Key] = a.Value
				}
				text, err := json.Marshal(arguments)
				if err != nil {
					return "", err
				}
				content += fmt.Sprintf(notation, c.Name, text)
			}
			return "<assistant>" + content + "<end>", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// FuzzPartial checks that any continuation of a turn keeps the certain beginning of its thinking and text.
func FuzzPartial(f *testing.F) {
	for _, seed := range []string{"", "a", "<think>a</think>b", "<think>'</think>'</think>", "a</think>`</think>`", `{"name": "f"}`, "a<tool_call>{}</tool_call>", " \n<thin",
		"a[TOOL_CALLS]f[ARGS]{}", "<calls><call>f<sep>{}</call>", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>"} {
		f.Add(seed, true, true, false)
		f.Add(seed, false, true, true)
		f.Add(seed, false, false, true)
	}
	learned := formats(f)
	f.Fuzz(func(t *testing.T, text string, opened, bare, offered bool) {
		for _, calls := range learned {
			template := &Template{thinks: thinking{open: thinkOpen, close: thinkClose, opened: opened, bare: bare}, calls: calls}
			reply := template.read(text)
			if !offered {
				reply.Text = reply.Whole
			}
			for i := range text {
				if p := template.Partial(text[:i], offered); !strings.HasPrefix(reply.Thinking, p.Thinking) || !strings.HasPrefix(reply.Text, p.Text) || p.Thought && p.Thinking != reply.Thinking {
					t.Fatalf("%s: %q: got %+v after %q, but %+v at the end", calls.Hint(), text, p, text[:i], reply)
				}
			}
		}
	})
}
