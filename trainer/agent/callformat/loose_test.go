package callformat

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// learned returns the format of a template of testdata.
func learned(t *testing.T, name string) Format {
	t.Helper()
	p, err := newPrinter(filepath.Join("testdata", "templates", name+".jinja"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := learn(p)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCallsWithoutAllMarks: calls are read also if a model leaves out white space or the outer
// mark, or writes the outer mark once for several calls.
func TestCallsWithoutAllMarks(t *testing.T) {
	const one, two = `get_weather {"text": "Oslo"} `, `get_weather {"text": "Rome", "whole": 2} `
	const oslo, rome = "<function=get_weather>\n<parameter=text>\nOslo\n</parameter>\n</function>", "<function=get_weather><parameter=text>Rome</parameter><parameter=whole>2</parameter></function>"
	f := learned(t, "trl_qwen3_5_nothink")
	for text, want := range map[string]string{
		"<tool_call>\n" + oslo + "\n</tool_call>\n<tool_call>" + rome + "</tool_call>": one + two,
		"<tool_call>\n" + oslo + "\n" + rome + "\n</tool_call>":                        one + two,
		"I look.\n" + oslo + "\n</tool_call>":                                          one,
		oslo:                                                                           one,
		"Write <function=NAME to call.":                                                "",
		"Write `<tool_call>` or '<function=' so.":                                      "",
	} {
		r := f.Read(text, FunctionsOf(definitions))
		var got strings.Builder
		for _, c := range r.Calls {
			fmt.Fprintf(&got, "%s %s%s ", c.Name, c.Arguments, c.Problem)
		}
		if got.String() != want {
			t.Errorf("%q is read as %s, want %s", text, got.String(), want)
		}
	}
}

// TestCallsAfterText: calls without a mark may follow text, and models write either of the keys for arguments.
func TestCallsAfterText(t *testing.T) {
	const call = `get_weather {"text": "Oslo"} `
	f := bare{tagged{name: "name", arguments: "parameters"}}
	for text, want := range map[string]string{
		`{"name": "get_weather", "arguments": {"text": "Oslo"}}`:                                                                         call,
		"I look.\n\n" + `{"name": "get_weather", "parameters": {"text": "Oslo"}}`:                                                        call,
		"I look.\n" + `{"name": "get_weather", "parameters": {"text": "Oslo"}}; {"name": "get_weather", "parameters": {"text": "Oslo"}}`: call + call,
		`I look.<|python_tag|>{"name": "get_weather", "parameters": {"text": "Oslo"}}`:                                                   call,
		"I look.\n" + `[{"name": "get_weather", "arguments": {"text": "Oslo"}}]` + "\n":                                                  call,
		"An example:\n" + `{"name": "get_weather", "parameters": {"text": "Oslo"}}` + "\nIs it right?":                                   "",
		"The answer:\n" + `{"name": "Ada", "parameters": {}}`:                                                                            "",
		"The answer:\n" + `{"city": "Oslo"}`:                                                                                             "",
		"I would write {\"name\": \"get_weather\", \"parameters\": {\"text\": \"Oslo\"}}":                                                "",
		"Do not write `<|python_tag|>` here.":                                                                                            "",
		strings.Repeat("[\n", 1<<16):                                                                                                     "",
	} {
		r := f.Read(text, FunctionsOf(definitions))
		var got strings.Builder
		for _, c := range r.Calls {
			fmt.Fprintf(&got, "%s %s%s ", c.Name, c.Arguments, c.Problem)
		}
		if safe := f.SafeLen(text); got.String() != want || len(r.Calls) > 0 && safe > r.Start {
			t.Errorf("%.100q is read as %s, want %s; the first %d characters were safe, and calls begin at %d", text, got.String(), want, safe, r.Start)
		}
	}
}

// TestQuotedMarks: a mark that a model quotes does not begin a call.
func TestQuotedMarks(t *testing.T) {
	formats := []Format{Hermes}
	for _, file := range corpus(t) {
		if strings.HasPrefix(file, "testdata") {
			formats = append(formats, learned(t, strings.TrimSuffix(filepath.Base(file), ".jinja")))
		}
	}
	for _, f := range formats {
		for _, quote := range []string{"`", `"`, "'"} {
			mark := f.Mark()
			if _, channels := f.(Harmony); mark == "" || channels {
				continue
			}
			text := "Calls begin with " + quote + mark + quote + "."
			if r := f.Read(text, FunctionsOf(definitions)); len(r.Calls) > 0 || r.Start != len(text) {
				t.Errorf("%s: %q is read as %+v", f.Hint(), text, r)
			}
		}
	}
}

// readings returns what a format reads in a text.
func readings(f Format, text string) string {
	var got strings.Builder
	for _, c := range f.Read(text, FunctionsOf(definitions)).Calls {
		fmt.Fprintf(&got, "%s %s%s ", c.Name, c.Arguments, c.Problem)
	}
	return got.String()
}

// TestValuesWithoutEnd: a value whose closing mark a model omits ends at the next parameter or at the end of the call, as in vLLM's
// qwen3coder parser.
func TestValuesWithoutEnd(t *testing.T) {
	f := learned(t, "trl_qwen3_5_nothink")
	const two = `get_weather {"text": "Oslo", "whole": 2} `
	for text, want := range map[string]string{
		"<tool_call>\n<function=get_weather>\n<parameter=text>\nOslo\n<parameter=whole>\n2\n</parameter>\n</function>\n</tool_call>":                                   two,
		"<tool_call>\n<function=get_weather>\n<parameter=text>\nOslo\n</parameter>\n<parameter=whole>\n2\n</function>\n</tool_call>":                                   two,
		"<tool_call><function=get_weather><parameter=text>\nOslo\n</function></tool_call><tool_call><function=get_weather><parameter=text>Rome</parameter></function>": `get_weather {"text": "Oslo"} get_weather {"text": "Rome"} `,
		"<tool_call><function=get_weather><parameter=text>a </function> b <parameter=x> c</parameter></function>":                                                      `get_weather {"text": "a </function> b <parameter=x> c"} `,
	} {
		if got := readings(f, text); got != want {
			t.Errorf("%q is read as %s, want %s", text, got, want)
		}
	}
}

// TestLooseCalls: calls without arguments, Granite 3.1's list without a closing mark (vLLM's granite parser), Kimi's ids with white space
// and without "functions." (vLLM's kimi_k2 parser), Mistral's calls without [ARGS] (vLLM's mistral parser), LFM2's JSON (llama.cpp).
func TestLooseCalls(t *testing.T) {
	kimi, lfm2 := learned(t, "llamacpp_moonshotai-Kimi-K2"), learned(t, "trl_lfm2_v2")
	const oslo = `get_weather {"text": "Oslo"} `
	for _, c := range []struct {
		f          Format
		text, want string
	}{
		{Hermes, `<tool_call>{"name": "now"}</tool_call>`, "now {} "},
		{Hermes, `<tool_call>{"name": "now", "arguments": null}</tool_call>`, "now {} "},
		{Hermes, `<tool_call>{"name": "now", "arguments": ""}</tool_call>`, "now {} "},
		{Hermes, `<tool_call>{"name": "now", "input": {}}</tool_call>`, `now the call of "now" has no "arguments" object. ` + hermesHint + " "},
		{bare{tagged{name: "name", arguments: "parameters"}}, `{"name": "now", "parameters": null}`, "now {} "},
		{bare{tagged{name: "name", arguments: "parameters"}}, `{"name": "now"}`, "now {} "},
		{Harmony{}, "<|channel|>commentary to=functions.now<|message|><|call|>", "now {} "},
		{Hermes, `<tool_call>[{"name": "get_weather", "arguments": {"text": "Oslo"}}, {"name": "now", "arguments": {}}]`, oslo + "now {} "},
		{kimi, `<|tool_calls_section_begin|><|tool_call_begin|> functions.get_weather:0 <|tool_call_argument_begin|> {"text": "Oslo"} <|tool_call_end|>`, oslo},
		{kimi, `<|tool_calls_section_begin|><|tool_call_begin|>get_weather:0<|tool_call_argument_begin|>{"text": "Oslo"}<|tool_call_end|>`, oslo},
		{kimi, `<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|> <|tool_call_end|>`, "now {} "},
		{mistral{names: true}, `[TOOL_CALLS]get_weather{"text": "Oslo"}[TOOL_CALLS]now[ARGS]{}`, oslo + "now {} "},
		{mistral{names: true}, `[TOOL_CALLS]get_weather[ARGS]{"text": "{"}`, `get_weather {"text": "{"} `},
		{lfm2, `<|tool_call_start|>[{"name": "get_weather", "arguments": {"text": "Oslo"}}, {"name": "now", "arguments": {}}]<|tool_call_end|>`, oslo + "now {} "},
		{lfm2, `<|tool_call_start|>{"name": "get_weather", "arguments": {"text": "Oslo"}}<|tool_call_end|>`, oslo},
		{lfm2, "<|tool_call_start|>[\r\n\t" + `{"name": "get_weather", "arguments": {"text": "Oslo"}}]<|tool_call_end|>`, oslo},
	} {
		if got := readings(c.f, c.text); got != c.want {
			t.Errorf("%q is read as %s, want %s", c.text, got, c.want)
		}
	}
}

// TestPythonLiterals: arguments are read as Python's ast.literal_eval reads them.
func TestPythonLiterals(t *testing.T) {
	f := python{open: "<c>", close: "</c>"}
	for literal, want := range map[string]string{
		".5": "0.5", "5.": "5", "+5": "5", "-.5": "-0.5", "1_000": "1000", "0x1F": "31", "0o17": "15", "1_0.2_5e3": "10.25e3", "0.50": "0.50", "00": "0", "-5": "-5",
		`r'\d+'`: `"\\d+"`, `r"a\"b"`: `"a\\\"b"`, `"a" "b"`: `"ab"`, `'a' "b"`: `"ab"`, "1e3": "1e3", "True": "true",
	} {
		if got, want := readings(f, "<c>[f(a="+literal+", b=1)]</c>"), `f {"a": `+want+`, "b": 1} `; got != want {
			t.Errorf("%s is read as %s, want %s", literal, got, want)
		}
	}
	for _, literal := range []string{"010", "1__0", "_1", "1_", "0x", "."} {
		if got := f.Read("<c>[f(a="+literal+")]</c>", nil); got.Calls[0].Problem == "" {
			t.Errorf("%s is read as %s", literal, got.Calls[0].Arguments)
		}
	}
	if v, err := literalOf("1_000"); err == nil {
		t.Errorf("a value without quotes: %s", v)
	}
}

// TestPythonCallsWithoutList: OLMo 3 writes each call on its own line between its marks, and Gemma 3's template of vLLM a list without
// marks.
func TestPythonCallsWithoutList(t *testing.T) {
	const two = `get_weather {"text": "Oslo"} now {} `
	for _, c := range []struct{ before, between, after, turn string }{
		{"<function_calls>\n", "\n", "\n</function_calls>", "<function_calls>\nget_weather(text='Oslo')\nnow()\n</function_calls>"},
		{"[", ", ", "]", "[get_weather(text='Oslo'), now()]"},
	} {
		f, err := InferFormat(func(content string, calls ...ProbeCall) (string, error) {
			var texts []string
			for _, call := range calls {
				var arguments []string
				for _, a := range call.Arguments {
					arguments = append(arguments, fmt.Sprintf("%s=%s", a.Key, strings.ReplaceAll(fmt.Sprintf("%q", fmt.Sprint(a.Value)), `"`, "'")))
				}
				texts = append(texts, call.Name+"("+strings.Join(arguments, ", ")+")")
			}
			if calls != nil {
				content = c.before + strings.Join(texts, c.between) + c.after
			}
			return "<|im_start|>assistant\n" + content + "<|im_end|>\n", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := readings(f, c.turn); got != two {
			t.Errorf("%q is read as %s, want %s", c.turn, got, two)
		}
	}
	f := python{open: "<c>", close: "</c>", lines: true}
	if got := f.Read("<c>\nf(a=1)\ng(b=\n</c>", nil).Calls; len(got) != 1 || got[0].Problem == "" {
		t.Errorf("an unreadable second call is read as %+v", got)
	}
}
