// Package constrained gives replies a form while they are sampled. It turns JSON Schemas, and the notation in which a
// model's template prints calls, into a structural tag of XGrammar, and restricts a turn to the tokens that the tag allows.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package constrained

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// Form is the form of a reply. It has a schema, functions or both.
type Form struct {
	Schema    json.RawMessage // schema of the JSON in a reply without calls; nil: the reply must call a function
	Functions []Function      // functions that the reply may call
	Several   bool            // a reply may have several calls, if the template prints them one after another
}

// Function is a function that a reply may call.
type Function struct {
	Name       string
	Parameters json.RawMessage // JSON Schema; empty or null: any object
	Call       agent.CallForm  // form of its calls, as the template prints them
}

// StructuralTag returns XGrammar's structural tag of the replies that have the form. template reads the turn. CheckSchema
// must accept the schemas. StructuralTag returns an error if the notation of the template's calls, or a pattern, cannot be
// enforced.
func (f Form) StructuralTag(template *agent.Template, tok *tokenizer.Tokenizer) (json.RawMessage, error) {
	calls, err := f.callsTag(tok)
	if err != nil {
		return nil, err
	}
	content := calls
	if f.Schema != nil {
		schema, err := parseSchema(f.Schema)
		if err != nil {
			return nil, err
		}
		if content, err = jsonTag(schema, ""); err != nil {
			return nil, err
		}
		if calls != nil {
			content = object{"type": "or", "elements": []any{content, calls}}
		}
	}
	if first := template.Partial("x", false); !first.Thought { // empty lines follow the thinking
		content = sequence([]any{object{"type": "regex", "pattern": "\n{0,2}"}, content})
	}
	tag, err := json.Marshal(object{"type": "structural_tag", "format": content})
	if err != nil {
		panic(err) // cannot happen: all parts are valid JSON
	}
	return tag, nil
}

// object is a part of a structural tag.
type object = map[string]any

// callsTag returns the part for calls as the template prints them: one call, or several if the template prints them one
// after another. It returns nil if there are no functions.
func (f Form) callsTag(tok *tokenizer.Tokenizer) (any, error) {
	if len(f.Functions) == 0 {
		return nil, nil
	}
	var calls []any
	several, between := f.Several, ""
	for _, function := range f.Functions {
		several, between = several && function.Call.Several, function.Call.Between
		call, err := function.callTag(tok)
		if err != nil {
			return nil, fmt.Errorf("the parameters of %s: %w", function.Name, err)
		}
		calls = append(calls, call)
	}
	var one any = object{"type": "or", "elements": calls}
	if several {
		more := sequence(append(constant(tok, between), one))
		one = sequence([]any{one, object{"type": "star", "content": more}})
	}
	return one, nil
}

// callTag returns the part for a call.
func (f Function) callTag(tok *tokenizer.Tokenizer) (object, error) {
	parameters := f.Parameters
	if len(parameters) == 0 || string(parameters) == "null" {
		parameters = json.RawMessage(`{"type":"object"}`)
	}
	schema, err := parseSchema(parameters)
	if err != nil {
		return nil, err
	}
	if f.Call.Pairs != nil {
		p := pairsTag{Pairs: f.Call.Pairs, tokens: tok, root: schema}
		return p.arguments(f.Call.Before, f.Call.After)
	}
	arguments, err := jsonTag(schema, "")
	return sequence(slices.Concat(constant(tok, f.Call.Before), []any{arguments}, constant(tok, f.Call.After))), err
}

// jsonTag returns the part for JSON with a schema. It allows as much white space between its parts as people usually
// write. If end is set, no text in the JSON contains it.
func jsonTag(schema node, end string) (object, error) {
	const space = 16
	exact, err := exactSchema(schema, end)
	tag := object{"type": "json_schema", "json_schema": exact, "max_whitespace_cnt": space}
	if end != "" {
		tag["excludes"] = []string{end}
	}
	return tag, err
}

func sequence(elements []any) object { return object{"type": "sequence", "elements": elements} }

// constant returns a text as elements of a sequence. Names of special tokens replace the special tokens.
func constant(tok *tokenizer.Tokenizer, text string) []any {
	var marked strings.Builder
	for _, id := range tok.Encode(text) {
		if !tok.Special(id) {
			continue
		}
		before, after, _ := strings.Cut(text, tok.Token(id))
		marked.WriteString(before + markOf(id))
		text = after
	}
	if marked.WriteString(text); marked.Len() == 0 {
		return nil
	}
	return []any{object{"type": "const_string", "value": marked.String()}}
}
