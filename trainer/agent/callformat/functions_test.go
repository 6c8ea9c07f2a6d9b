package callformat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestTypesOfWideSchemas: the types of a parameter with very many alternatives are unknown, and are found out in no time.
func TestTypesOfWideSchemas(t *testing.T) {
	for _, c := range []struct {
		levels, branches int
		want             types
	}{{1, 3, types{"string"}}, {2, 20, types{"string"}}, {4, 200, nil}, {400, 1, types{"string"}}, {2000, 1, nil}} {
		var defs []string
		for i := range c.levels {
			next := slices.Repeat([]string{fmt.Sprintf(`{"$ref": "#/$defs/d%d"}`, i+1)}, c.branches)
			defs = append(defs, fmt.Sprintf(`"d%d": {"anyOf": [%s]}`, i, strings.Join(next, ", ")))
		}
		root := object(json.RawMessage(fmt.Sprintf(`{"$defs": {%s, "d%d": {"type": "string"}}}`, strings.Join(defs, ", "), c.levels)))
		if got := typesOf(json.RawMessage(`{"$ref": "#/$defs/d0"}`), root); !slices.Equal(got, c.want) {
			t.Errorf("%d levels, %d branches: %v, want %v", c.levels, c.branches, got, c.want)
		}
	}
}

// TestTypesOfOtherNames: a text stays a text if the schema has Python's or Gemini's name of its type.
func TestTypesOfOtherNames(t *testing.T) {
	for schema, want := range map[string]string{`{"type": "str"}`: `"5"`, `{"type": "STRING"}`: `"5"`, `{"anyOf": [{"type": "text"}, {"type": "null"}]}`: `"5"`,
		`{"type": ["STR", "NULL"]}`: `"5"`, `{"type": "INTEGER"}`: "5", `{"type": "int"}`: "5", `{"type": "any"}`: "5"} {
		if got := typesOf(json.RawMessage(schema), nil).value("5"); string(got) != want {
			t.Errorf("%s: got %s, want %s", schema, got, want)
		}
	}
}

// TestReferences: references into lists, and with escapes, are resolved, as zod's and pydantic's schemas have them.
func TestReferences(t *testing.T) {
	root := object(json.RawMessage(`{"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "string"}]}}, "$defs": {"List[str]/x": {"type": "string"}}}`))
	for _, ref := range []string{"#/properties/a/anyOf/1", "#/$defs/List%5Bstr%5D~1x", "#/$defs/List[str]~1x"} {
		if got := typesOf(json.RawMessage(`{"$ref": "`+ref+`"}`), root); !slices.Equal(got, types{"string"}) {
			t.Errorf("%s: got %v", ref, got)
		}
	}
}

// TestLongReference: a reference with too many parts is not resolved. Reading its parts takes quadratic time.
func TestLongReference(t *testing.T) {
	for depth, want := range map[int]types{maxPointer - 1: {"string"}, 5000: nil} {
		root := object(json.RawMessage(`{"a":` + strings.Repeat("[", depth) + `{"type": "string"}` + strings.Repeat("]", depth) + `}`))
		if got := typesOf(json.RawMessage(`{"$ref": "#/a`+strings.Repeat("/0", depth)+`"}`), root); !slices.Equal(got, want) {
			t.Errorf("%d parts: got %v, want %v", depth, got, want)
		}
	}
}
