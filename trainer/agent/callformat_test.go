package agent

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// templateOf returns SmolLM2's tokenizer with a chat template that prints an assistant's calls by the given Jinja.
func templateOf(t *testing.T, calls string) *Template {
	t.Helper()
	return chatTemplate(t, "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"+calls+
		"{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
}

// chatTemplate returns SmolLM2's tokenizer with another chat template.
func chatTemplate(t *testing.T, jinja string) *Template {
	t.Helper()
	functions := []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}`)}
	out, err := NewTemplate(TemplateOptions{Tokenizer: tokenizertest.WithTemplate(t, "smollm2", jinja), Functions: functions})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExtends checks that a template that prints its own space before a turn, like Llama 2's and the first of Mistral,
// continues from the sampled tokens. A template that adds words does not.
func TestExtends(t *testing.T) {
	const chat = "{% for m in messages %}{% if m.role == 'assistant' %}BEFORE{{ m.content | trim }}<|im_end|>{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
	before, after := []tokenizer.Message{{Role: "user", Content: "a"}}, []tokenizer.Message{{Role: "user", Content: "b"}}
	for printed, want := range map[string]bool{"": true, "{{ ' ' }}": true, "{{ '\n\n' }}": true, "Well: ": false, "<think>\n\n</think>\n\n": false} {
		got, err := chatTemplate(t, strings.Replace(chat, "BEFORE", printed, 1)).Extends(before, false, after)
		if err != nil || got != want {
			t.Errorf("a template that prints %q before a turn: extends is %v; error %v", printed, got, err)
		}
	}
}

// TestCallFormats: the calls of a turn are read as the model's template prints them.
func TestCallFormats(t *testing.T) {
	const each = "{% for c in m.tool_calls %}%s{% endfor %}"
	two := []string{`f {"a": 1}`, `g {"b": {"c": "}"}}`}
	for name, c := range map[string]struct {
		template string
		turns    map[string][]string // calls, by the text of the turn; a problem begins with !
	}{
		"hermes": {strings.ReplaceAll(each, "%s", `<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>`), map[string][]string{
			`Well. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "g", "arguments": {"b": {"c": "}"}}}</tool_call>`: two}},
		"mistral": {"[TOOL_CALLS][" + strings.ReplaceAll(each, "%s", `{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{{ ", " if not loop.last }}`) + "]", map[string][]string{
			`[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "x"}, {"name": "g", "arguments": {"b": {"c": "}"}}}]`: two,
			`[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{"b": {"c": "}"}}`:                                              two,
			`[TOOL_CALLS][{"name": "f", "argu`:                                                                             {"!ends too early"},
			`No call.`:                                                                                                     nil}},
		"llama": {strings.ReplaceAll(each, "%s", `{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}`), map[string][]string{
			`{"name": "f", "parameters": {"a": 1}}`: two[:1],
			`<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {"b": {"c": "}"}}}`: two,
			`{"answer": 42}`:                                              nil,
			`{"name": "Ada", "age": 36}`:                                  nil,
			`{"city": {"name": "Oslo"}}`:                                  nil,
			`The name is {"name": "f"}`:                                   nil,
			`{"name": "f", "arguments": {}}`:                              {"f {}"},
			`{"name": "f", "arguments": 1}`:                               {`!"arguments"`},
			`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`: two[:1]}},
		"plain": {strings.ReplaceAll(each, "%s", `{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}`), map[string][]string{
			`{"name": "f", "arguments": {"a": 1}}`: two[:1]}},
	} {
		d := templateOf(t, c.template)
		for said, want := range c.turns {
			reply := d.Reply(append(d.Encode(said), d.Stops().IDs[0]))
			var got []string
			for i, call := range reply.Calls {
				text := fmt.Sprintf("%s %s", call.Name, call.Arguments)
				if call.Problem != "" && i < len(want) && strings.HasPrefix(want[i], "!") && strings.Contains(call.Problem, want[i][1:]) {
					text = want[i]
				}
				got = append(got, text)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s\n%q, want %q (%+v)", name, said, got, want, reply)
			}
			if first, _, _ := strings.Cut(said, "<tool_call>"); name == "hermes" && reply.Text != first {
				t.Errorf("got text %q, want %q", reply.Text, first)
			}
		}
	}
}

// TestCallsThatCannotBePrinted: a template that offers functions and fails to print their calls is an error that names the reason. If the
// template itself refuses calls, or ignores them, the system message describes the functions.
func TestCallsThatCannotBePrinted(t *testing.T) {
	const chat = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}CALLS{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{{ tools | tojson }}"
	functions := []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}`)}
	for calls, want := range map[string]string{
		"{{ m.tool_calls | pprint }}": `no filter named "pprint"`, "{{ [].append(1) }}": "list.append", "{{ raise_exception('no calls') }}": "", "": "",
	} {
		_, err := NewTemplate(TemplateOptions{Tokenizer: tokenizertest.WithTemplate(t, "smollm2", strings.Replace(chat, "CALLS", calls, 1)), Functions: functions})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", calls, err, want)
		}
	}
}
