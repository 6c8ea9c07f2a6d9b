package jsonschemas

import (
	"fmt"
	"strings"
	"testing"
)

// doubling returns a schema in which each level refers to the next one n times under the keyword.
func doubling(keyword string, levels, n int) string {
	var defs []string
	for i := range levels {
		refs := strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"$ref": "#/$defs/d%d"}, `, i+1), n), ", ")
		defs = append(defs, fmt.Sprintf(`"d%d": {%q: [%s]}`, i, keyword, refs))
	}
	return fmt.Sprintf(`{"$ref": "#/$defs/d0", "$defs": {%s, "d%d": {"type": "string"}}}`, strings.Join(defs, ", "), levels)
}

func TestResolve(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{`{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}`, ""},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}`, ""},
		{`{"properties": {"child": {"$ref": "#"}, "list": {"items": {"$ref": "#/properties/list"}}}}`, ""}, // a tree
		{`{"$defs": {"a/b": {"type": "string"}, "c d": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c%20d"}]}`, ""},
		{doubling("anyOf", 3, 10), ""},
		{doubling("anyOf", 40, 2), "more than 4096 schemas for one value"},
		{doubling("allOf", 4, 30), "more than 4096 schemas for one value"},
		{`{"properties": {"a": ` + doubling("oneOf", 20, 3) + `}}`, "names nothing"},
		{`{"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}`, "refers to itself"},
		{`{"anyOf": [{"$ref": "#"}, {"type": "string"}]}`, "refers to itself"},
		{`{"$defs": {"a": {"AllOf": [{"$ref": "#/$defs/a"}]}}}`, "refers to itself"}, // the validator ignores case
		{`{"not": {"$dynamicRef": "#"}}`, "refers to itself"},
		{`{"properties": {"a": {"$ref": "https://example.com/schema"}}}`, "is not one within the schema"},
		{`{"$ref": "#/$defs/none"}`, "names nothing"},
		{`{"type": 7}`, "type"},
		{`[`, "unexpected end"},
	} {
		s, err := Resolve([]byte(c.schema))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100s: %v, want %q", c.schema, err, c.want)
		}
		if err == nil {
			_ = s.Validate(map[string]any{"a": "x", "child": map[string]any{"child": map[string]any{}}})
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add(`{"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"items": {"$ref": "#"}}}}`, `{"a": [1]}`)
	f.Add(doubling("allOf", 5, 2), `"x"`)
	f.Fuzz(func(_ *testing.T, schema, value string) {
		if s, err := Resolve([]byte(schema)); err == nil {
			_ = s.Validate(value)
		}
	})
}
