package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

func TestMessageJSON(t *testing.T) {
	for want, m := range map[string]Message{
		`{"role": "user", "content": "x"}`: {Role: "user", Content: "x"},
		`{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{"id": "1", "type": "function", ` +
			`"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}, {"type": "function", "function": {"name": "g", "arguments": {}}}]}`: {
			Role: "assistant", Reasoning: "hm", ToolCalls: []ToolCall{
				{ID: "1", Name: "f", Arguments: ordered.NewObject("b", int64(1), "a", int64(2))}, {Name: "g"}}},
		`{"role": "tool", "content": "4", "name": "f", "tool_call_id": "1"}`: {
			Role: "tool", Content: "4", Name: "f", ToolCallID: "1"},
	} {
		if got, err := ordered.Dumps(m.JSON(), ordered.Format{}); got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestRenderVariables(t *testing.T) {
	tok := parseSmall(t, `{"eos_token":"<e>","chat_template":"{{ eos_token }}|{{ bos_token is defined }}|{{ tools is none }}|`+
		`{{ enable_thinking is defined }}|{{ documents is none }}|{{ extra }}|{{ messages|length }}|{{ add_generation_prompt }}"}`)
	got, err := tok.Render(Chat{Kwargs: ordered.NewObject("extra", 1.0)})
	if want := "<e>|False|True|False|True|1.0|0|False"; got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	no := false
	got, err = tok.Render(Chat{Messages: Messages(Message{}), Tools: []any{}, AddGenerationPrompt: true, EnableThinking: &no})
	if want := "<e>|False|False|True|True||1|True"; got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestModelsOwnTokens: tokens with names of the model's own are variables of the template and special tokens, as in transformers 5.
func TestModelsOwnTokens(t *testing.T) {
	tok := parseSmall(t, `{"eot_token":"ab","add_bos_token":true,"odd_token":5,"extra_special_tokens":{"image_token":{"content":"<i>"}},`+
		`"chat_template":"{{ eot_token }}|{{ image_token }}|{{ odd_token is defined }}|{{ add_bos_token is defined }}"}`)
	got, err := tok.Render(Chat{})
	if want := "ab|<i>|False|False"; got != want || !tok.Special(2) || !slices.Equal(tok.Encode("<i>"), []int32{int32(tok.VocabSize() - 1)}) {
		t.Errorf("got %q, %v, want %q; special %v, ids %v", got, err, want, tok.Special(2), tok.Encode("<i>"))
	}
}

// TestPriorityOfExtraTokens: a name in extra_special_tokens has priority over the same key, as in transformers 5.24.
func TestPriorityOfExtraTokens(t *testing.T) {
	tok := parseSmall(t, `{"eos_token":"a","extra_special_tokens":{"eos_token":"ab"}}`)
	if tok.EOS() != 2 {
		t.Errorf("got %d, want 2", tok.EOS())
	}
}

// TestEmptyNames: a name of an empty text is a variable of the template, but no token: the vocabulary does not grow.
func TestEmptyNames(t *testing.T) {
	tok := parseSmall(t, `{"bos_token":"","image_token":"","chat_template":"{{ image_token is defined }}"}`)
	if got, err := tok.Render(Chat{}); got != "True" || tok.BOS() != NoID || tok.VocabSize() != parseSmall(t, `{}`).VocabSize() {
		t.Errorf("got %q, %v, BOS %d, %d tokens", got, err, tok.BOS(), tok.VocabSize())
	}
}

func TestTemplateSources(t *testing.T) {
	tok := parseSmall(t, `{"chat_template":{"tool_use":"T","default":"D"}}`)
	if got, err := tok.Render(Chat{Tools: []any{}}); got != "T" {
		t.Errorf("an object of templates: got %q, %v", got, err)
	}
	if tok, err := Parse(map[string][]byte{fileTokenizer: []byte(small), fileConfig: []byte(`{"chat_template":{"default":5}}`)}); err == nil {
		t.Errorf("a number in place of a template: got %v", tok.Files())
	}
	tok = parseSmall(t, `{"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]}`)
	if got, err := tok.Render(Chat{}); got != "D" {
		t.Errorf("named templates: got %q, %v", got, err)
	}
	if got, err := tok.Render(Chat{Tools: []any{}}); got != "T" {
		t.Errorf("named templates, with tools: got %q, %v", got, err)
	}
	onlyProcessor := map[string][]byte{fileTokenizer: []byte(small), fileProcessor: []byte(`{"chat_template":"P"}`)}
	tok, err := Parse(onlyProcessor)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tok.Render(Chat{}); got != "P" || tok.Files()[fileProcessor] == nil {
		t.Errorf("the template of a processor: got %q, %v", got, err)
	}
	files := map[string][]byte{fileTokenizer: []byte(small), fileConfig: []byte(`{"chat_template":"C"}`), fileTemplate: []byte("J"),
		fileModel: []byte("M"), fileProcessor: []byte(`{"chat_template":"P"}`)}
	if tok, err = Parse(files); err != nil {
		t.Fatal(err)
	}
	if string(tok.Files()[fileModel]) != "M" {
		t.Error("a checkpoint has no tokenizer.model, which llama.cpp's converter reads")
	}
	if got, err := tok.Render(Chat{}); got != "J" {
		t.Errorf("chat_template.jinja must have priority: got %q, %v", got, err)
	}
	files[templateFolder+"/tool_use.jinja"] = []byte("A")
	files[templateFolder+"/rag.jinja"] = []byte("{{ of no use")
	if tok, err = Parse(files); err != nil {
		t.Fatal(err)
	}
	saved, err := Parse(tok.Files())
	if err != nil {
		t.Fatal(err)
	}
	for _, tok := range []*Tokenizer{tok, saved} {
		if plain, err := tok.Render(Chat{}); plain != "J" {
			t.Errorf("chat_template.jinja with additional templates: got %q, %v", plain, err)
		}
		if got, err := tok.Render(Chat{Tools: []any{}}); got != "A" {
			t.Errorf("additional_chat_templates: got %q, %v", got, err)
		}
	}
	if _, err := Parse(map[string][]byte{fileTokenizer: []byte(small), fileConfig: []byte(`{"chat_template":[{"name":"rag","template":"R"}]}`)}); err == nil || !strings.Contains(err.Error(), "rag") {
		t.Errorf("no template has a name that a chat can use: %v", err)
	}
	clear(files)
	files[fileTokenizer] = []byte(small)
	if tok, err = Parse(files); err != nil {
		t.Fatal(err)
	}
	if _, err := tok.Render(Chat{}); !errors.Is(err, ErrNoTemplate) || tok.HasTemplate() {
		t.Errorf("no template: got %v", err)
	}
}

func TestGenerationBlockAndDate(t *testing.T) {
	tok := parseSmall(t, `{"chat_template":"{% generation %}a{% endgeneration %}{{ strftime_now('%Y')|int > 2000 }}"}`)
	if got, err := tok.Render(Chat{}); !strings.HasPrefix(got, "aTrue") {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestRenderDate: a template that asks for today's date gets the given date and not the clock's.
func TestRenderDate(t *testing.T) {
	tok := parseSmall(t, `{"chat_template":"{{ strftime_now('%d %b %Y') }}"}`)
	date := time.Date(2024, time.July, 26, 0, 0, 0, 0, time.UTC)
	if got, err := tok.Render(Chat{Date: date}); got != "26 Jul 2024" {
		t.Errorf("got %q, %v", got, err)
	}
}
