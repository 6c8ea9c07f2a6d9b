package callformat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/jinja"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// printer prints with a template. Arguments are objects or, if the template requires it, texts.
type printer struct {
	template *jinja.Template
	tools    []any
	asText   bool
}

const probeUser = "mgrpo-probe-user"

var date = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)

func (p *printer) render(messages ...any) (string, error) {
	vars := map[string]any{"messages": messages, "tools": p.tools, "documents": nil, "add_generation_prompt": false,
		"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
	text, err := p.template.Render(vars, date)
	_, text, _ = strings.Cut(text, probeUser)
	return text, err
}

func (p *printer) print(content string, calls ...call) (string, error) {
	message := ordered.NewObject("role", "assistant", "content", content)
	var list []any
	for i, c := range calls {
		var arguments any = c.arguments
		if p.asText {
			text, err := ordered.Dumps(c.arguments, ordered.Format{})
			if err != nil {
				return "", err
			}
			arguments = text
		}
		list = append(list, ordered.NewObject("id", fmt.Sprintf("probe%04d", i+1), "type", "function",
			"function", ordered.NewObject("name", c.name, "arguments", arguments)))
	}
	if list != nil {
		message.Set("tool_calls", list)
	}
	return p.render(ordered.NewObject("role", "user", "content", probeUser), message)
}

func (p *printer) probe(content string, calls ...ProbeCall) (string, error) {
	var list []call
	for _, c := range calls {
		arguments := &ordered.Object{}
		for _, a := range c.Arguments {
			arguments.Set(a.Key, a.Value)
		}
		list = append(list, call{c.Name, arguments})
	}
	return p.print(content, list...)
}

type call struct {
	name      string
	arguments *ordered.Object
}

var definitions = []json.RawMessage{
	json.RawMessage(`{"type":"function","function":{"name":"get_weather","description":"weather","parameters":{"type":"object","properties":{` +
		`"text":{"type":"string","description":"d"},"whole":{"type":"integer","description":"d"},"number":{"type":"number","description":"d"},` +
		`"yes":{"type":"boolean","description":"d"},"nothing":{"type":["integer","null"],"description":"d"},"list":{"type":"array","items":{},"description":"d"},` +
		`"object":{"type":"object","description":"d","properties":{},"additionalProperties":true}},"required":["text"]}}}`),
	json.RawMessage(`{"type":"function","function":{"name":"now","description":"time","parameters":{"type":"object","properties":{}}}}`),
}

func newPrinter(file string) (*printer, error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	template, err := jinja.Parse(string(source))
	if err != nil {
		return nil, err
	}
	p := &printer{template: template}
	for _, d := range definitions {
		v, err := ordered.Parse(d)
		if err != nil {
			return nil, err
		}
		p.tools = append(p.tools, v)
	}
	return p, nil
}

// unread lists the templates whose notation no format can read.
var unread = []string{"Kimi-K3.jinja", "MiniMax-M3.jinja"}

// corpus returns the templates of testdata, and the templates in the folders of TEMPLATES (make test-templates).
func corpus(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "templates", "*.jinja"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	if more := os.Getenv("TEMPLATES"); more != "" {
		found, err := filepath.Glob(filepath.Join(more, "*", "*.jinja"))
		if err != nil || len(found) == 0 {
			t.Fatalf("TEMPLATES=%s: no templates: %v", more, err)
		}
		files = append(files, found...)
	}
	return files
}

// learn learns the format of a template that prints arguments given as objects, or else as texts.
func learn(p *printer) (Format, error) {
	f, err := InferFormat(p.probe)
	if err == nil {
		return f, nil
	}
	p.asText = true
	g, again := InferFormat(p.probe)
	if again != nil {
		return nil, err
	}
	return g, nil
}

// TestPrintedCallsAreReadBack: calls that a template of the corpus prints are read again unchanged. Arguments
// have all types, nesting, quotes, line ends, other scripts, and texts that contain the marks of the notations.
func TestPrintedCallsAreReadBack(t *testing.T) {
	const seeds = 60
	read, silent, broken := 0, 0, 0
	for _, file := range corpus(t) {
		kept := strings.HasPrefix(file, "testdata")
		p, err := newPrinter(file)
		var f Format
		if err == nil {
			f, err = learn(p)
		}
		switch {
		case err == nil:
		case !kept && errors.Is(err, ErrNotPrinted):
			silent++
			continue
		case !kept && !errors.Is(err, ErrUnknown) || slices.Contains(unread, filepath.Base(file)):
			t.Logf("%s: %v", file, err)
			broken++
			continue
		default:
			t.Errorf("%s: %v", file, err)
			continue
		}
		read++
		for seed := range uint64(seeds) {
			if problem := readsBack(p, f, seed); problem != "" {
				t.Errorf("%s (%s): %s", file, f.Hint(), problem)
				break
			}
		}
	}
	t.Logf("the calls of %d templates are read, %d print none, %d cannot be rendered or read", read, silent, broken)
}

// FuzzRead checks that no text makes a reader panic, that calls without a problem have a name and an object, and that
// SafeLen keeps its promise.
func FuzzRead(f *testing.F) {
	var formats []Format
	for _, file := range corpus(f) {
		p, err := newPrinter(file)
		if err != nil {
			f.Fatal(err)
		}
		format, err := learn(p)
		if err != nil {
			f.Fatal(err)
		}
		formats = append(formats, format)
		r := rand.New(rand.NewPCG(1, 1))
		if text, err := p.print("", call{"get_weather", randomArguments(r)}); err == nil {
			f.Add(text, len(text)/2)
		}
	}
	f.Add("[TOOL_CALLS][]", 0)
	formats = append(formats, Hermes, bare{tagged{name: "name", arguments: "parameters"}})
	functions := FunctionsOf(definitions)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		for _, format := range formats {
			r := format.Read(text, functions)
			if r.Start < 0 || r.Start > len(text) || r.End < 0 || r.End > len(text) {
				t.Fatalf("%s: %q: got calls from byte %d to %d", format.Hint(), text, r.Start, r.End)
			}
			for _, c := range r.Calls {
				if c.Problem == "" && (c.Name == "" || object(c.Arguments) == nil) {
					t.Fatalf("%s: %q: a call without a problem has name %q and arguments %s", format.Hint(), text, c.Name, c.Arguments)
				}
			}
			if _, channels := format.(Harmony); channels {
				continue // Split returns the certain part
			}
			if cut = min(max(cut, 0), len(text)); format.SafeLen(text[:cut]) > r.Start {
				t.Fatalf("%s: %q: the first call begins at %d, but of %q %d are certain", format.Hint(), text, r.Start, text[:cut], format.SafeLen(text[:cut]))
			}
		}
	})
}

var awkward = []string{"Oslo", "it's", `say "hi"`, "line\nline", "  spaced  ", "東京 🎉", "{}", "[1, 2]", "a, b=1)", `back\slash`, "12", "true", "null", "None", "",
	"<b>bold</b>", "</tool_call>", "<tool_call>", "</parameter>", "</function>", "<arg_key>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call_end|>", "```", "; {\"name\": 1}", "x'", "\n", "</think>", "<think>", "]<|tool_call_end|>", "'", "a: b", "https://x.y/?a=1&b=2", "tab\tand\r\n"}

func randomText(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(3) {
		b.WriteString(awkward[r.IntN(len(awkward))])
	}
	return b.String()
}

func randomValue(r *rand.Rand, depth int) any {
	switch n := r.IntN(8); {
	case n == 0:
		return int64(r.IntN(2000) - 1000)
	case n == 1:
		return float64(r.IntN(1000))/8 + 0.5
	case n == 2:
		return r.IntN(2) == 0
	case n == 3:
		return nil
	case n == 4 && depth < 3:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, randomValue(r, depth+1))
		}
		return list
	case n == 5 && depth < 3:
		return randomObject(r, depth+1)
	}
	return randomText(r)
}

func randomObject(r *rand.Rand, depth int) *ordered.Object {
	o := &ordered.Object{}
	for _, k := range []string{"a", "b_c", "camelCase"}[:r.IntN(4)] {
		o.Set(k, randomValue(r, depth))
	}
	return o
}

func randomArguments(r *rand.Rand) *ordered.Object {
	o := &ordered.Object{}
	for _, k := range []string{"text", "whole", "number", "yes", "nothing", "list", "object"} {
		if r.IntN(2) == 0 {
			continue
		}
		switch k {
		case "text":
			o.Set(k, randomText(r))
		case "whole":
			o.Set(k, int64(r.IntN(2000)-1000))
		case "number":
			o.Set(k, float64(r.IntN(1000))/8+0.5)
		case "yes":
			o.Set(k, r.IntN(2) == 0)
		case "nothing":
			o.Set(k, nil)
		case "list":
			list := []any{}
			for range r.IntN(4) {
				list = append(list, randomValue(r, 1))
			}
			o.Set(k, list)
		case "object":
			o.Set(k, randomObject(r, 1))
		}
	}
	return o
}

func sameJSON(a, b []byte) bool {
	var x, y any
	dx, dy := json.NewDecoder(bytes.NewReader(a)), json.NewDecoder(bytes.NewReader(b))
	return dx.Decode(&x) == nil && dy.Decode(&y) == nil && reflect.DeepEqual(x, y)
}

func readsBack(p *printer, f Format, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	calls := []call{{"get_weather", randomArguments(r)}}
	if r.IntN(2) == 0 {
		calls = append(calls, call{"now", &ordered.Object{}})
	}
	if r.IntN(3) == 0 {
		calls = append(calls, call{"get_weather", randomArguments(r)})
	}
	text, err := p.print("", calls...)
	if err != nil {
		if len(calls) > 1 {
			return ""
		}
		return err.Error()
	}
	// Some templates print only the first call.
	if strings.Count(text, "get_weather")+strings.Count(text, "now") < len(calls) {
		return ""
	}
	if before, err := p.print("mgrpo-probe-turn"); err == nil {
		before, _, _ = strings.Cut(before, "mgrpo-probe-turn")
		text = TrimOpening(text, before)
	}
	got := f.Read(text, FunctionsOf(definitions))
	for i, c := range calls {
		want, err := ordered.Dumps(c.arguments, ordered.Format{})
		if err != nil {
			return err.Error()
		}
		if len(got.Calls) != len(calls) || got.Calls[i].Problem != "" || got.Calls[i].Name != c.name || !sameJSON(got.Calls[i].Arguments, []byte(want)) {
			return fmt.Sprintf("\n     seed %d call %d of %d want %s\n     text %q\n     got %s", seed, i, len(calls), want, text, fmt.Sprint(got.Calls))
		}
	}
	return ""
}
