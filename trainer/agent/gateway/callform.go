package gateway

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// callForm returns the form of calls as the template prints them: one call, or several if the template prints them one
// after another. It returns nil if there are no functions.
func (r *chatRequest) callForm(d *dialect, tok *tokenizer.Tokenizer) (any, error) {
	var calls []any
	several, between := !r.oneCall() && r.ToolChoice.name == "", ""
	for _, raw := range r.Tools {
		f := functionOf(raw)
		if r.ToolChoice.mode == "none" || r.ToolChoice.name != "" && r.ToolChoice.name != f.Function.Name {
			continue
		}
		parameters := f.Function.Parameters
		if len(parameters) == 0 || string(parameters) == "null" {
			parameters = json.RawMessage(`{"type":"object"}`)
		}
		form, err := d.CallForm(f.Function.Name)
		if err != nil {
			return nil, err
		}
		several, between = several && form.Several, form.Between
		call, err := oneCallForm(form, parameters, tok)
		if err != nil {
			return nil, fmt.Errorf("the parameters of %s: %w", f.Function.Name, err)
		}
		calls = append(calls, call)
	}
	if calls == nil {
		return nil, nil
	}
	var one any = object{"type": "or", "elements": calls}
	if several {
		more := sequence(append(constant(tok, between), one))
		one = sequence([]any{one, object{"type": "star", "content": more}})
	}
	return one, nil
}

// oneCallForm returns a call of a function with these parameters.
func oneCallForm(form agent.CallForm, parameters json.RawMessage, tok *tokenizer.Tokenizer) (object, error) {
	schema, err := parsed(parameters)
	if err != nil {
		return nil, err
	}
	if form.Pairs != nil {
		f := pairsForm{Pairs: form.Pairs, tokens: tok, root: schema}
		return f.arguments(form.Before, form.After)
	}
	arguments, err := jsonForm(schema, "")
	return sequence(slices.Concat(constant(tok, form.Before), []any{arguments}, constant(tok, form.After))), err
}
