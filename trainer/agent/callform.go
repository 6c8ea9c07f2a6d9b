package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
)

// CallForm holds the texts that the template prints before and after the arguments of a call to one function.
type CallForm struct {
	Before, After string
	Pairs         *Pairs // marks of arguments that are keys and values without quotes; nil: the arguments are JSON
	Between       string // between two calls of one turn
	Several       bool   // a turn may have several calls, each with Before and After
}

// Pairs holds the texts around keys and values between marks, as in the notations of Qwen3-Coder and GLM.
type Pairs struct {
	Open  string // before a key
	Text  string // between a key and a value that is a string
	Other string // between a key and any other value, which is JSON
	Close string // after a value
	None  string // a whole call without arguments
	End   string // the end of a value; no string contains it
}

// Typed reports whether the marks distinguish a string from another value. Otherwise the types of the function's
// parameters decide.
func (p *Pairs) Typed() bool { return p.Text != p.Other }

// Keys and values of the calls that CallForm asks a template to print.
const (
	formKey    = "mgrpo_probe_key"
	formKey2   = "mgrpo_probe_other"
	formValue  = "mgrpo-probe-argument"
	formValue2 = "mgrpo-probe-further"
	formNumber = int64(7081352946)
)

// CallForm returns the form in which the template prints a call of a function. It returns an error if the arguments are
// neither JSON nor keys and values between marks.
func (t *Template) CallForm(name string) (CallForm, error) {
	first := callformat.Argument{Key: formKey, Value: formValue}
	text, err := t.callsText(name, []callformat.Argument{first})
	if err != nil {
		return CallForm{}, err
	}
	form := CallForm{}
	if reader, ok := t.calls.(callformat.PairsFormat); ok {
		form, ok = t.pairsForm(name, text, reader)
		if !ok {
			return CallForm{}, fmt.Errorf("the model's chat template prints the arguments of %s in more than one way: mgrpo cannot constrain a reply "+
				"to that notation", name)
		}
	} else if start, end := argumentsIn(text, formValue); end > 0 {
		form.Before, form.After = text[:start], text[end:]
	} else {
		return CallForm{}, fmt.Errorf("the model's chat template prints calls as %s: mgrpo cannot constrain a reply to that notation",
			strings.TrimSuffix(strings.TrimPrefix(t.calls.Hint(), "Write "), "."))
	}
	if read := t.calls.Read(text, t.functions).Calls; len(read) != 1 || read[0].Name != name || read[0].Problem != "" {
		return CallForm{}, fmt.Errorf("the model's chat template prints a call of %s as %.200q, which mgrpo cannot read back", name, text)
	}
	further := callformat.Argument{Key: formKey, Value: formValue2}
	if two, err := t.callsText(name, []callformat.Argument{first}, []callformat.Argument{further}); err == nil {
		form.join(two)
	}
	return form, nil
}

// pairsForm derives the form from calls with one argument, with two, with a number and with none.
func (t *Template) pairsForm(name, one string, reader callformat.PairsFormat) (CallForm, bool) {
	first, second := callformat.Argument{Key: formKey, Value: formValue}, callformat.Argument{Key: formKey2, Value: formValue2}
	two, err := t.callsText(name, []callformat.Argument{first, second})
	number, again := t.callsText(name, []callformat.Argument{{Key: formKey, Value: formNumber}})
	none, last := t.callsText(name, nil)
	if errors.Join(err, again, last) != nil {
		return CallForm{}, false
	}
	head, rest, _ := strings.Cut(one, formKey)
	middle, tail, ok := strings.Cut(rest, formValue)
	next, found := strings.CutPrefix(two, head+formKey+middle+formValue)
	next, end, both := strings.Cut(next, formKey2+middle+formValue2)
	other, numbered := strings.CutPrefix(number, head+formKey)
	other, same := strings.CutSuffix(other, fmt.Sprint(formNumber)+tail)
	if !ok || !found || !both || end != tail || !numbered || !same {
		return CallForm{}, false
	}
	n := 0
	for n < min(len(head), len(next)) && head[len(head)-1-n] == next[len(next)-1-n] {
		n++
	}
	p := &Pairs{Open: head[len(head)-n:], Text: middle, Other: other, Close: next[:len(next)-n], None: none, End: reader.ValueEnd()}
	after, closed := strings.CutPrefix(tail, p.Close)
	return CallForm{Before: head[:len(head)-n], After: after, Pairs: p}, closed
}

// join finds the text between two calls. It leaves Several false unless one call directly follows the other.
func (f *CallForm) join(two string) {
	var arguments string
	if p := f.Pairs; p != nil {
		arguments = p.Open + formKey + p.Text + formValue + p.Close
	} else {
		start, end := argumentsIn(two, formValue)
		arguments = two[start:end]
	}
	whole := func(value string) string { return f.Before + strings.Replace(arguments, formValue, value, 1) + f.After }
	rest, ok := strings.CutPrefix(two, whole(formValue))
	if between, last := strings.CutSuffix(rest, whole(formValue2)); ok && last {
		f.Between, f.Several = between, true
	}
}

// callsText returns one call of a function for each list of arguments, as the template prints them in one turn, without
// the end-of-turn token.
func (t *Template) callsText(name string, each ...[]callformat.Argument) (string, error) {
	var calls []callformat.Call
	for _, list := range each {
		arguments := map[string]any{} // printed in the order of the keys, which is also the order of the lists
		for _, a := range list {
			arguments[a.Key] = a.Value
		}
		raw, _ := json.Marshal(arguments) // texts and whole numbers always marshal
		calls = append(calls, callformat.Call{Name: name, Arguments: raw})
	}
	if !t.history.calls {
		return writerOf(t.calls).Write(calls), nil
	}
	text, err := t.markedCalls(name, each)
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

// markedCalls returns printed calls from their opening mark on, or "" if the notation has no mark before the name.
func (t *Template) markedCalls(name string, each [][]callformat.Argument) (string, error) {
	mark := t.calls.Mark()
	if mark == "" {
		return "", nil
	}
	var calls []callformat.ProbeCall
	for i, list := range each {
		calls = append(calls, callformat.ProbeCall{ID: callID(1, i), Name: name, Arguments: list})
	}
	text, err := t.printCalls("", calls...)
	if i := strings.Index(text, mark); err == nil && i >= 0 && i < strings.Index(text, name) {
		return text[i:], nil
	}
	return "", err
}

// argumentsIn finds the JSON arguments of a printed call. end is 0 if the call has no JSON arguments.
func argumentsIn(text, value string) (start, end int) {
	key := strings.Index(text, `"`+formKey+`"`)
	if key < 0 {
		return 0, 0
	}
	start = strings.LastIndexByte(text[:key], '{')
	var raw json.RawMessage
	decoder := json.NewDecoder(strings.NewReader(text[max(start, 0):]))
	if start >= 0 && strings.TrimSpace(text[start+1:key]) == "" && decoder.Decode(&raw) == nil && strings.Contains(string(raw), value) {
		return start, start + int(decoder.InputOffset())
	}
	return 0, 0
}
