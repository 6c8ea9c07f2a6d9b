package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
)

// CallForm is how the template prints a call of one function: the texts around its arguments.
type CallForm struct {
	Before, After string
	Style         string // of the arguments: "json", or XGrammar's name of another notation
	Between       string // between two calls of one turn
	Several       bool   // a turn may have several calls, each with Before and After
}

// argumentStyles are notations of arguments that XGrammar can enforce: the texts around a value, whose key is KEY.
var argumentStyles = []struct{ name, open, close string }{
	{"qwen_xml", "<parameter=KEY>", "</parameter>"},
	{"glm_xml", "<arg_key>KEY</arg_key>\n", "</arg_value>"}, // of GLM 4.5: XGrammar allows space between, which later ones do not read
}

// Keys and values of the calls that CallForm has a template print.
const (
	formKey    = "mgrpo_probe_key"
	formValue  = "mgrpo-probe-argument"
	formValue2 = "mgrpo-probe-further"
)

// CallForm returns the form in which the template prints a call of a function. It is an error if the arguments are neither JSON nor in one
// of the notations that can be enforced.
func (t *Template) CallForm(name string) (CallForm, error) {
	text, err := t.callsText(name, formValue)
	if err != nil {
		return CallForm{}, err
	}
	start, end, style := argumentsIn(text, formValue)
	if style == "" {
		return CallForm{}, fmt.Errorf("the model's chat template prints calls as %s: mgrpo cannot hold a reply to that notation", t.calls.Name())
	}
	form := CallForm{Before: text[:start], After: text[end:], Style: style}
	if read := t.calls.Read(text, t.functions).Calls; len(read) != 1 || read[0].Name != name || read[0].Problem != "" {
		return CallForm{}, fmt.Errorf("the model's chat template prints a call of %s as %.200q, which is not read back", name, text)
	}
	if two, err := t.callsText(name, formValue, formValue2); err == nil {
		form.join(two)
	}
	return form, nil
}

// join finds out what stands between two calls. It leaves Several false if they are not written one behind the other.
func (f *CallForm) join(two string) {
	start, end, _ := argumentsIn(two, formValue)
	if end == 0 || two[:start] != f.Before {
		return
	}
	rest, ok := strings.CutPrefix(two[end:], f.After)
	start, end, _ = argumentsIn(rest, formValue2)
	if !ok || end == 0 || rest[end:] != f.After {
		return
	}
	f.Between, f.Several = strings.CutSuffix(rest[:start], f.Before)
}

// callsText returns calls of a function with one argument each, as the template prints them in a turn, without the token that ends it.
func (t *Template) callsText(name string, values ...string) (string, error) {
	var calls []ParsedCall
	for _, v := range values {
		calls = append(calls, ParsedCall{Name: name, Arguments: fmt.Appendf(nil, `{%q: %q}`, formKey, v)})
	}
	if !t.history.calls {
		w, ok := t.calls.(callformat.Writer)
		if !ok {
			w = callformat.Hermes
		}
		return w.Write(calls), nil
	}
	text, err := t.markedCalls(name, values)
	if err != nil || text == "" {
		text, err = t.printed(WrittenTurn{Calls: calls})
	}
	if err != nil {
		return "", err
	}
	ids := t.cfg.Tokenizer.Encode(text)
	if i := slices.IndexFunc(ids, func(id int32) bool { return slices.Contains(t.stops, id) }); i >= 0 {
		text = t.cfg.Tokenizer.Decode(ids[:i], false)
	}
	if _, rest, closed := t.thinks.split(text); t.thinks.opened && closed {
		text = rest
	}
	return strings.TrimLeft(text, Blanks), nil
}

// markedCalls returns printed calls from their mark on; "" if the notation has no mark before the name.
func (t *Template) markedCalls(name string, values []string) (string, error) {
	mark := t.calls.Mark()
	if mark == "" {
		return "", nil
	}
	var calls []callformat.Printed
	for i, v := range values {
		calls = append(calls, callformat.Printed{ID: callID(1, i), Name: name, Arguments: []callformat.Argument{{Key: formKey, Value: v}}})
	}
	text, err := t.printCalls("", calls...)
	if i := strings.Index(text, mark); err == nil && i >= 0 && i < strings.Index(text, name) {
		return text[i:], nil
	}
	return "", err
}

// argumentsIn finds the arguments of a printed call and their notation; "" if there are none, or in none of the known ones.
func argumentsIn(text, value string) (start, end int, style string) {
	key := strings.Index(text, `"`+formKey+`"`)
	if key >= 0 {
		start = strings.LastIndexByte(text[:key], '{')
		var raw json.RawMessage
		decoder := json.NewDecoder(strings.NewReader(text[max(start, 0):]))
		if start >= 0 && strings.TrimSpace(text[start+1:key]) == "" && decoder.Decode(&raw) == nil && strings.Contains(string(raw), value) {
			return start, start + int(decoder.InputOffset()), "json"
		}
	}
	for _, s := range argumentStyles {
		open := strings.ReplaceAll(s.open, "KEY", formKey)
		start = strings.Index(text, open)
		if start < 0 {
			continue
		}
		n := strings.Index(text[start:], s.close)
		if n >= 0 && strings.Contains(text[start:start+n], value) {
			return start, start + n + len(s.close), s.name
		}
	}
	return 0, 0, ""
}
