package standalone

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

type converter func(context.Context, *tokenizer.Tokenizer, io.Reader, io.Writer) (Tally, error)

// converts returns the answers, all of which must succeed.
func converts(t *testing.T, answer converter, tok *tokenizer.Tokenizer, in string) string {
	t.Helper()
	var out strings.Builder
	if tally, err := answer(t.Context(), tok, strings.NewReader(in), &out); err != nil || tally.Err() != nil {
		t.Fatalf("%v, %v", err, tally.Err())
	}
	return out.String()
}

func TestTokenize(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	ids := converts(t, Tokenize, tok, `{"text": "Hi there!"}`+"\n\n"+`{"id": "b", "text": "\u00e9<|im_end|>"}`+"\n")
	if got, want := strings.SplitN(ids, "\n", 2)[0], `{"ids":[26843,665,17]}`; got != want {
		t.Errorf("ids: got %s, want %s", got, want)
	}
	if got, want := converts(t, Detokenize, tok, ids), "{\"text\":\"Hi there!\"}\n{\"id\":\"b\",\"text\":\"é<|im_end|>\"}\n"; got != want {
		t.Errorf("after encoding and decoding: got %q, want %q", got, want)
	}
}

func TestRender(t *testing.T) {
	in := `{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "x"}], "add_generation_prompt": true,
		"tools": null, "enable_thinking": null, "template_kwargs": {"a": 1}}`
	got := converts(t, Render, tokenizertest.Golden(t, "smollm2"), strings.ReplaceAll(in, "\n", ""))
	want := `{"text":"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n","ids":[1,`
	if !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s…", got, want)
	}
}

// TestErrorsNameTheLine: a refused line is answered with an error, which names it, and the next line is answered.
func TestErrorsNameTheLine(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	for _, c := range []struct {
		answer   converter
		in, want string
	}{
		{Tokenize, "{\"text\":\"a\"}\n{\"text\":1}\n", `line 2: \"text\" is of type int, want str`},
		{Tokenize, "\n\n{\"id\":7,\"tex\":\"a\"}", `"id":7,"error":"line 3: the key \"text\" is missing`},
		{Tokenize, "[1]", "line 1: want an object, have list"},
		{Tokenize, "{\"text\":\"a\"", "line 1: json"},
		{Tokenize, "{}", `line 1: the key \"text\" is missing`},
		{Tokenize, strings.Repeat(" ", maxLine+1), "line 1: longer than 64 MiB"},
		{Detokenize, `{"ids":[1,-1]}`, "line 1: ids[1] is not a token id"},
		{Detokenize, `{"ids":[1,1.5]}`, "line 1: ids[1] is not a token id"},
		{Render, `{"messages":[{"role":"user"}]}`, "line 1: chat template: line"},
		{Render, `{"messages":{}}`, `line 1: \"messages\" is of type dict, want list`},
		{Render, `{"messages":[],"tools":"x"}`, `line 1: \"tools\" is of type str, want list`},
	} {
		var out strings.Builder
		tally, err := c.answer(t.Context(), tok, strings.NewReader(c.in+"\n"+`{"text":"","ids":[],"messages":[]}`), &out)
		answers := strings.Split(strings.TrimSpace(out.String()), "\n")
		if err != nil || tally.Failed != 1 || tally.Err() == nil || len(answers) != tally.Lines || strings.Contains(answers[len(answers)-1], "error") {
			t.Fatalf("%.100s: %+v, %v: %.300s", c.in, tally, err, out.String())
		}
		if refused := answers[len(answers)-2]; !strings.Contains(refused, c.want) {
			t.Errorf("%.100s: got %s, want %s", c.in, refused, c.want)
		}
	}
}

// TestEmptyToolsAreNotNone: templates distinguish an empty list of tools from none, so the two are passed on
// as they are. The expected texts are Jinja2's for the same template with tools=[], tools=None and tools=None.
func TestEmptyToolsAreNotNone(t *testing.T) {
	const template = `{% if tools is not none %}{{ tools | length }} tools{% else %}no tools{% endif %}`
	tok := tokenizertest.WithTemplate(t, "smollm2", template)
	out := converts(t, Render, tok, `{"messages":[],"tools":[]}`+"\n"+`{"messages":[],"tools":null}`+"\n"+`{"messages":[]}`)
	for i, want := range []string{"0 tools", "no tools", "no tools"} {
		if got := strings.Split(out, "\n")[i]; !strings.HasPrefix(got, `{"text":"`+want+`"`) {
			t.Errorf("line %d: got %s, want %q", i+1, got, want)
		}
	}
}

// TestByteOrderMark reads lines with a byte order mark before the first line, and blank lines between lines.
func TestByteOrderMark(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	with := converts(t, Tokenize, tok, "\ufeff{\"text\":\"a\"}\r\n\r\n{\"text\":\"b\"}")
	if without := converts(t, Tokenize, tok, "{\"text\":\"a\"}\n{\"text\":\"b\"}\n"); with != without {
		t.Errorf("%q, want %q", with, without)
	}
}
