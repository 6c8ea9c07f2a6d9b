package lines

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

func TestTokenize(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	var ids, text bytes.Buffer
	in := `{"text": "Hi there!"}` + "\n\n" + `{"text": "\u00e9<|im_end|>"}` + "\n"
	if err := Tokenize(tok, strings.NewReader(in), &ids, false); err != nil {
		t.Fatal(err)
	}
	if err := Tokenize(tok, strings.NewReader(ids.String()), &text, true); err != nil {
		t.Fatal(err)
	}
	if got, want := text.String(), "{\"text\": \"Hi there!\"}\n{\"text\": \"é<|im_end|>\"}\n"; got != want {
		t.Errorf("after encoding and decoding: got %q, want %q", got, want)
	}
	if got, want := strings.SplitN(ids.String(), "\n", 2)[0], `{"ids": [26843, 665, 17]}`; got != want {
		t.Errorf("ids: got %s, want %s", got, want)
	}
}

func TestRender(t *testing.T) {
	var out bytes.Buffer
	in := `{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "x"}], "add_generation_prompt": true,
		"tools": null, "enable_thinking": null, "template_kwargs": {"a": 1}}`
	if err := Render(tokenizertest.Golden(t, "smollm2"), strings.NewReader(strings.ReplaceAll(in, "\n", "")), &out); err != nil {
		t.Fatal(err)
	}
	want := `{"text": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n", "ids": [1, `
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("got %s, want %s…", out.String(), want)
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	decode := func(r *strings.Reader) error { return Tokenize(tok, r, new(bytes.Buffer), true) }
	encode := func(r *strings.Reader) error { return Tokenize(tok, r, new(bytes.Buffer), false) }
	render := func(r *strings.Reader) error { return Render(tok, r, new(bytes.Buffer)) }
	for _, c := range []struct {
		run      func(*strings.Reader) error
		in, want string
	}{
		{encode, "{\"text\":\"a\"}\n{\"text\":1}\n", `line 2: "text" is of type int, want str`},
		{encode, "\n\n{\"tex\":\"a\"}", `line 3: "text" is of type NoneType`},
		{encode, "[1]", "line 1: want an object, have list"},
		{encode, "{\"text\":\"a\"", "line 1: json"},
		{encode, "{}", `line 1: "text" is of type NoneType`},
		{decode, `{"ids":[1,-1]}`, "line 1: ids[1] is not a token id"},
		{decode, `{"ids":[1,1.5]}`, "line 1: ids[1] is not a token id"},
		{render, `{"messages":[{"role":"user"}]}`, "line 1: chat template: line"},
		{render, `{"messages":{}}`, `line 1: "messages" is of type dict, want list`},
		{render, `{"messages":[],"tools":"x"}`, `line 1: "tools" is of type str, want list`},
	} {
		if err := c.run(strings.NewReader(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.in, err, c.want)
		}
	}
}

func TestLineLimit(t *testing.T) {
	long := strings.NewReader("{\"text\":\"\"}\n" + strings.Repeat(" ", MaxLine+1))
	var out bytes.Buffer
	err := Tokenize(tokenizertest.Golden(t, "smollm2"), long, &out, false)
	if err == nil || !strings.Contains(err.Error(), "line 2: longer than") {
		t.Errorf("got %v, want an error about line 2", err)
	}
	if out.String() != "{\"ids\": []}\n" {
		t.Errorf("before the error: got %q", out.String())
	}
}

// TestEmptyToolsAreNotNone: templates distinguish an empty list of tools from none, so the two are passed on
// as they are. The expected texts are Jinja2's for the same template with tools=[], tools=None and tools=None.
func TestEmptyToolsAreNotNone(t *testing.T) {
	const template = `{% if tools is not none %}{{ tools | length }} tools{% else %}no tools{% endif %}`
	tok := tokenizertest.WithTemplate(t, "smollm2", template)
	var out bytes.Buffer
	if err := Render(tok, strings.NewReader(`{"messages":[],"tools":[]}`+"\n"+`{"messages":[],"tools":null}`+"\n"+`{"messages":[]}`), &out); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"0 tools", "no tools", "no tools"} {
		if got := strings.Split(out.String(), "\n")[i]; !strings.HasPrefix(got, `{"text": "`+want+`"`) {
			t.Errorf("line %d: got %s, want %q", i+1, got, want)
		}
	}
}

// TestByteOrderMark reads lines with a byte order mark before the first line, and blank lines between lines.
func TestByteOrderMark(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	var with, without strings.Builder
	if err := errors.Join(Tokenize(tok, strings.NewReader("\ufeff{\"text\":\"a\"}\r\n\r\n{\"text\":\"b\"}"), &with, false), Tokenize(tok, strings.NewReader("{\"text\":\"a\"}\n{\"text\":\"b\"}\n"), &without, false)); err != nil || with.String() != without.String() {
		t.Errorf("%q, want %q: %v", with.String(), without.String(), err)
	}
}
