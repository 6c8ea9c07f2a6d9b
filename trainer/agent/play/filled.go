package play

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// withoutFills returns a row of a Parquet file without the nulls in the definitions of its functions and in the arguments of its calls.
// The structs of a column have the same fields in all rows, so writers fill the fields that a row lacks with null. A null argument is kept
// only if a definition of the row allows it. Values that the file stores as JSON text are kept as they are.
func withoutFills(text []byte) ([]byte, error) {
	v, err := ordered.Parse(text)
	if err != nil {
		return nil, err
	}
	row, ok := v.(*ordered.Object)
	if !ok {
		return text, nil
	}
	if tools, ok := ordered.Value[[]any](row, "tools"); ok {
		row.Set("tools", allowed(tools, nil))
	}
	schemas := schemasOf(row)
	for _, key := range []string{"messages", "conversations"} {
		messages, _ := ordered.Value[[]any](row, key)
		for _, m := range objects(messages) {
			calls, _ := ordered.Value[[]any](m, "tool_calls")
			call, _ := m.Get("function_call")
			for _, c := range objects(append(calls, call)) {
				clearArguments(c, schemas)
			}
		}
	}
	out, err := ordered.Dumps(row, ordered.Format{})
	return []byte(out), err
}

// clearArguments removes the nulls that the schema of a call's function does not allow from the call's arguments.
func clearArguments(call *ordered.Object, schemas map[string]*ordered.Object) {
	if function, ok := ordered.Value[*ordered.Object](call, "function"); ok {
		call = function
	}
	name, _ := ordered.Value[string](call, "name")
	if arguments, ok := call.Get("arguments"); ok {
		call.Set("arguments", allowed(arguments, schemas[name]))
	}
}

// schemasOf returns the parameters of a row's functions by name.
func schemasOf(row *ordered.Object) map[string]*ordered.Object {
	v, _ := row.Get("tools")
	tools, _ := parsed(v).([]any)
	schemas := map[string]*ordered.Object{}
	for _, tool := range tools {
		tool, ok := parsed(tool).(*ordered.Object)
		if !ok {
			continue // parseChat returns the error
		}
		if function, ok := ordered.Value[*ordered.Object](tool, "function"); ok {
			tool = function
		}
		name, _ := ordered.Value[string](tool, "name")
		schemas[name], _ = ordered.Value[*ordered.Object](tool, "parameters")
	}
	return schemas
}

// parsed returns the value of a JSON text. It returns other values as they are, and nil for a text that is not JSON.
func parsed(v any) any {
	if text, ok := v.(string); ok {
		v, _ = ordered.Parse([]byte(text))
	}
	return v
}

// objects returns the objects of a list.
func objects(list []any) (out []*ordered.Object) {
	for _, v := range list {
		if o, ok := v.(*ordered.Object); ok {
			out = append(out, o)
		}
	}
	return out
}

// allowed returns a value without the keys of objects whose value is null, except those whose schema allows null.
func allowed(v any, schema *ordered.Object) any {
	switch v := v.(type) {
	case []any:
		items, _ := ordered.Value[*ordered.Object](schema, "items")
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = allowed(item, items)
		}
		return out
	case *ordered.Object:
		properties, _ := ordered.Value[*ordered.Object](schema, "properties")
		out := &ordered.Object{}
		for key, value := range v.All() {
			property, _ := ordered.Value[*ordered.Object](properties, key)
			if value != nil || allowsNull(property) {
				out.Set(key, allowed(value, property))
			}
		}
		return out
	}
	return v
}

// allowsNull reports whether a schema lists null among its types, its values or its alternatives.
func allowsNull(schema *ordered.Object) bool {
	if kind, _ := schema.Get("type"); kind == "null" {
		return true
	}
	if nullable, _ := ordered.Value[bool](schema, "nullable"); nullable { // OpenAPI's keyword
		return true
	}
	types, _ := ordered.Value[[]any](schema, "type")
	values, _ := ordered.Value[[]any](schema, "enum")
	if slices.Contains(types, any("null")) || slices.Contains(values, any(nil)) {
		return true
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		alternatives, _ := ordered.Value[[]any](schema, key)
		if slices.ContainsFunc(objects(alternatives), allowsNull) {
			return true
		}
	}
	return false
}
