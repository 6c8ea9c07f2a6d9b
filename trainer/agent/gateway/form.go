package gateway

import (
	"encoding/json"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// form returns the structural tag of the replies that a request asks for, or nil if any reply is allowed. If a request
// cannot be enforced, the error names its field.
func (r *chatRequest) form(d *dialect, tok *tokenizer.Tokenizer) (json.RawMessage, error) {
	schema := r.ResponseFormat.schema()
	if r.ToolChoice.mode != "required" && schema == nil {
		return nil, nil
	}
	calls, err := r.callForm(d, tok)
	if err != nil {
		field := "tool_choice"
		if schema != nil {
			field = "response_format"
		}
		return nil, invalid(field, "%v; leave it out", err)
	}
	var one, content any
	if schema != nil {
		n, err := parsed(schema)
		if err == nil {
			content, err = jsonForm(n, "")
		}
		if err != nil {
			return nil, invalid("response_format", "%v", err)
		}
	}
	switch {
	case r.ToolChoice.mode == "required":
		one = calls
	case calls == nil:
		one = content
	default:
		one = object{"type": "or", "elements": []any{content, calls}}
	}
	if first := r.template(d).Partial("x", false); !first.Thought { // empty lines follow the thinking
		one = object{"type": "sequence", "elements": []any{object{"type": "regex", "pattern": "\n{0,2}"}, one}}
	}
	tag, err := json.Marshal(object{"type": "structural_tag", "format": one})
	if err != nil {
		panic(err) // cannot happen: all parts are valid JSON
	}
	return tag, nil
}

type object = map[string]any

// jsonForm returns the form of JSON with a schema. It allows as much white space between its parts as people usually
// write. If end is set, no text in the JSON contains it.
func jsonForm(schema node, end string) (object, error) {
	const space = 16
	exact, err := exactSchema(schema, end)
	form := object{"type": "json_schema", "json_schema": exact, "max_whitespace_cnt": space}
	if end != "" {
		form["excludes"] = []string{end}
	}
	return form, err
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
