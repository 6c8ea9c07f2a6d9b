package callformat

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Functions are the functions that a model may call, with the types of their parameters. The zero value contains no
// functions.
type Functions map[string]map[string]types

// types are the JSON types that a parameter may have; nil: any.
type types []string

// FunctionsOf reads OpenAI function definitions. A parameter whose schema it cannot read may have any type.
func FunctionsOf(definitions []json.RawMessage) Functions {
	out := Functions{}
	for _, d := range definitions {
		var f struct {
			Function struct {
				Name       string          `json:"name"`
				Parameters json.RawMessage `json:"parameters"`
			} `json:"function"`
		}
		if json.Unmarshal(d, &f) != nil {
			continue
		}
		root := object(f.Function.Parameters)
		parameters := map[string]types{}
		for name, schema := range object(root["properties"]) {
			parameters[name] = typesOf(schema, root)
		}
		out[f.Function.Name] = parameters
	}
	return out
}

// maxSchemas bounds the nested alternatives and references of a parameter.
const maxSchemas = 1000

// typesOf returns the types that a JSON Schema allows, or nil if they are unknown. root resolves references.
func typesOf(schema json.RawMessage, root map[string]json.RawMessage) types {
	f := typeFinder{root: root}
	out := f.typesOf(schema)
	if f.seen > maxSchemas {
		return nil
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// typeFinder finds the types of one schema.
type typeFinder struct {
	root map[string]json.RawMessage
	seen int // number of schemas so far, including referenced schemas
}

func (f *typeFinder) typesOf(schema json.RawMessage) (out types) {
	s := object(schema)
	if f.seen++; s == nil || f.seen > maxSchemas {
		return nil
	}
	var one string
	var several []string
	switch {
	case json.Unmarshal(s["type"], &one) == nil && one != "":
		return types{typeNamed(one)}
	case json.Unmarshal(s["type"], &several) == nil && len(several) > 0:
		for _, name := range several {
			out = append(out, typeNamed(name))
		}
		return out
	case json.Unmarshal(s["$ref"], &one) == nil && one != "":
		return f.typesOf(resolve(one, f.root))
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		var branches []json.RawMessage
		if json.Unmarshal(s[key], &branches) != nil || key == "allOf" && len(branches) != 1 {
			continue
		}
		for _, b := range branches {
			t := f.typesOf(b)
			if t == nil {
				return nil
			}
			out = append(out, t...)
		}
		return out
	}
	var values []json.RawMessage
	if json.Unmarshal(s["enum"], &values) != nil && s["const"] != nil {
		values = []json.RawMessage{s["const"]}
	}
	for _, v := range values {
		out = append(out, typeOf(v))
	}
	return out
}

// typeNamed returns a type under its name in JSON Schema. Some programs write Python's or Gemini's names, which vLLM reads, too.
func typeNamed(name string) string {
	name = strings.ToLower(name)
	if slices.Contains([]string{"str", "text", "char", "varchar", "enum"}, name) {
		return "string"
	}
	return name
}

// maxPointer bounds the parts of a reference, because each part is read with everything inside it.
const maxPointer = 100

// resolve returns the part of a schema that a reference names: a JSON Pointer, with escapes of URLs.
func resolve(ref string, root map[string]json.RawMessage) json.RawMessage {
	path, ok := strings.CutPrefix(ref, "#/")
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	if !ok || strings.Count(path, "/") >= maxPointer {
		return nil
	}
	at := root
	var raw json.RawMessage
	for part := range strings.SplitSeq(path, "/") {
		var list []json.RawMessage
		if i, err := strconv.Atoi(part); err == nil && json.Unmarshal(raw, &list) == nil && i >= 0 && i < len(list) {
			raw = list[i]
		} else {
			raw = at[pointerEscapes.Replace(part)]
		}
		at = object(raw)
	}
	return raw
}

var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

// typeOf returns the JSON type of a valid value.
func typeOf(v json.RawMessage) string {
	switch v[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	if strings.ContainsAny(string(v), ".eE") {
		return "number"
	}
	return "integer"
}

func (t types) allow(kind string) bool {
	return t == nil || slices.Contains(t, kind) || kind == "integer" && slices.Contains(t, "number")
}

// value converts a text that a model wrote without quotes into JSON. If the text is JSON or a Python literal of a type
// that the parameter may have, that is the value. Any other text is a string. The caller checks its type.
func (t types) value(text string) json.RawMessage {
	if !slices.Equal(t, types{"string"}) {
		trimmed := strings.TrimSpace(text)
		raw := json.RawMessage(trimmed)
		if !json.Valid(raw) {
			raw, _ = literalOf(trimmed)
		}
		// If no text is allowed, a value of a wrong type is kept, so that the check of the arguments can name its type.
		if len(raw) > 0 && (!t.allow("string") || typeOf(raw) != "string" && t.allow(typeOf(raw))) {
			return raw
		}
	}
	return quoted(text)
}

// Plain encodes a value as JSON without HTML escapes, because escapes cost tokens.
func Plain(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// quoted returns a text as a JSON string.
func quoted(text string) json.RawMessage {
	raw, _ := Plain(text) // every string can be encoded
	return raw
}

// fields builds a JSON object from keys and values in their order. A repeated key replaces the earlier value.
type fields struct {
	keys   []string
	values map[string]json.RawMessage
}

func (f *fields) set(key string, value json.RawMessage) {
	if f.values == nil {
		f.values = map[string]json.RawMessage{}
	}
	if _, again := f.values[key]; !again {
		f.keys = append(f.keys, key)
	}
	f.values[key] = value
}

func (f *fields) json() json.RawMessage {
	var b strings.Builder
	b.WriteByte('{')
	for i, k := range f.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(quoted(k))
		b.WriteString(": ")
		b.Write(f.values[k])
	}
	b.WriteByte('}')
	return json.RawMessage(b.String())
}
