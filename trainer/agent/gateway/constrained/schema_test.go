package constrained

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestSchemasRefused: a schema that cannot be enforced is refused, and the error names its unsupported part.
func TestSchemasRefused(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type": "object", "properties": {"a": {"not": {"type": "null"}}}}`: "schema.properties.a.not cannot be enforced",
		`{"type": "array", "uniqueItems": true}`:                             "uniqueItems",
		`{"type": "object", "anyOf": [{"required": ["a"]}]}`:                 "type together with anyOf",
		`{"allOf": [{"type": "object"}, {"required": ["a"]}]}`:               "allOf",
		`{"$ref": "https://example.org/schema"}`:                             "not within the schema",
		`{"type": "string", "maxLength": 100000000}`:                         "maxLength",
		`{"type": "number", "multipleOf": 0.1}`:                              "multipleOf",
		`{"$ref": "#/$defs/none"}`:                                           "$defs",
		`[]`:                                                                 "must be an object",
		strings.Repeat(`{"type": "array", "items": `, 40) + "true" + strings.Repeat("}", 40): "nested more than",
	} {
		if err := CheckSchema(json.RawMessage(schema)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", schema, err)
		}
	}
}
