package agent

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// withSchema is a tool with a given schema.
type withSchema struct {
	tool.Tool
	schema string
}

func (t withSchema) Schema() json.RawMessage { return json.RawMessage(t.schema) }

// TestOddSchemas: tools are offered although their schemas belong to other drafts or have errors. Only the tool checks the arguments then.
func TestOddSchemas(t *testing.T) {
	for _, schema := range []string{
		`{"type": "object", "properties": {"ttl": {"type": "integer", "minimum": 0, "exclusiveMinimum": true}}}`,
		`{"type": "object", "properties": {"q": {"type": "string", "required": true}}}`,
		`{"type": "object", "properties": {"q": {"type": "integer", "minimum": "0"}}}`,
		`{"type": "object", "properties": {"q": {"type": "strng"}}}`, `{"type": "object", "properties": {"q": {"type": "string", "pattern": "^(?!foo)\\w+$"}}}`,
		`{"type": "object", "properties": {"q": {"$ref": "https://example.com/schema.json"}}}`, `{"type": "object", "properties": {"q": {"type": "string"}}, "required": null}`,
		`{"type": "object", "properties": {"q": {"type": "array", "items": [{"type": "string"}]}}}`, `{"$id": "foo bar", "type": "object"}`, `{}`, `true`,
		`{"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}`, `{"anyOf": [{"$ref": "#"}]}`, // endless
	} {
		base := tool.Func("odd", "", "q", "", func(context.Context, string) (string, error) { return "", nil })
		c, err := NewCallables(nil, []tool.Tool{withSchema{base, schema}})
		if err != nil {
			t.Errorf("schema %s: %v", schema, err)
			continue
		}
		if call := c.Call(callformat.Call{Name: "odd", Arguments: json.RawMessage(`{"a": 1}`)}); call.Problem != "" {
			t.Errorf("schema %s: got problem %q, want none", schema, call.Problem)
		}
	}
}
