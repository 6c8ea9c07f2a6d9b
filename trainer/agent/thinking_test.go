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

// TestThinkingMarks: thinking is recognised by the marks that the template prints before calls, drops from a text, or names in its
// system prompt. The turns are those of Gemma 4 (its template's strip_thinking) and Ministral 3 (vLLM's mistral_reasoning_parser).
func TestThinkingMarks(t *testing.T) {
	const chat = "NAMED{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}PRINTED<tool_call>{\"name\": \"{{ m.tool_calls[0].function.name }}\", " +
		"\"arguments\": {{ m.tool_calls[0].function.arguments | tojson }}}</tool_call>{% else %}{{ CONTENT }}{% endif %}<|im_end|>\n{% endfor %}{{ tools | tojson }}"
	const printed = "{% if m.reasoning_content %}{{ '<|channel>thought\n' + m.reasoning_content + '\n<channel|>' }}{% endif %}"
	for name, c := range map[string]struct {
		named, printed, content string
		turn, thinking, text    string
	}{
		"printed with calls": {"", printed, "m.content", "<|channel>thought\nT\n<channel|>5", "T", "5"},
		"dropped":            {"", "", "m.content.split('<channel|>')[-1]", "<|channel>thought\nT\n<channel|>5", "T", "5"},
		"an empty thought":   {"", "", "m.content.split('<channel|>')[-1]", "<|channel>thought\n<channel|>5", "", "5"},
		"named":              {"Think in [THINK]...[/THINK].", "", "m.content", "[THINK]I think.[/THINK]The answer is 5.", "I think.", "The answer is 5."},
		"not handled":        {"", "", "m.content", "[THINK]I think.[/THINK]The answer is 5.", "", "[THINK]I think.[/THINK]The answer is 5."},
	} {
		d := chatTemplate(t, strings.NewReplacer("NAMED", c.named, "PRINTED", c.printed, "CONTENT", c.content).Replace(chat))
		if r := d.read(c.turn); r.Thinking != c.thinking || r.Text != c.text {
			t.Errorf("%s: got thinking %q and text %q, want %q and %q", name, r.Thinking, r.Text, c.thinking, c.text)
		}
	}
}

func TestWithoutThinking(t *testing.T) {
	for text, want := range map[string]string{
		"<think>T</think>5": "5", "T</think>5": "5", "[THINK]T[/THINK]5": "5", "<|channel>thought\nT\n<channel|>5": "5", " <seed:think>T</seed:think>5": "5",
		"<thought>T</thought>5": "5", "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>final<|message|>5": "5",
		"5 [THINK]T[/THINK]": "5 [THINK]T[/THINK]", "an </analysis> mark": "an </analysis> mark", "[THINK]T": "",
	} {
		if got := WithoutThinking(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// formats returns notations of calls, learned from a template with the given text around name and arguments.
func formats(t testing.TB) (out []callformat.Format) {
	t.Helper()
	for _, notation := range []string{"<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>", "[TOOL_CALLS]%s[ARGS]%s", `{"name": "%s", "parameters": %s}`,
		"<calls><call>%s<sep>%s</call>", "<|channel|>commentary to=functions.%s<|message|>%s<|call|>"} {
		f, err := callformat.InferFormat(func(content string, calls ...callformat.ProbeCall) (string, error) {
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
