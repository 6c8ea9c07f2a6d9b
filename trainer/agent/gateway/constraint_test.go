package gateway

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway/constrained"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// Constrains returns true for the tests' model.
func (m *model) Constrains() bool { return true }

// under returns a token that a constraint allows: the model's own choice if it is allowed, and
// otherwise a random token. Tokens that end texts and objects are more likely, so that a reply ends.
func (m *model) under(c policy.Constraint, id int32, random *rand.Rand) (int32, error) {
	mask, err := c.Allowed()
	if err != nil {
		return 0, err
	}
	allowed := func(id int32) bool { return mask[id/32]>>(id%32)&1 == 1 }
	if !allowed(id) {
		tried, most := 0, int32(m.tok.VocabSize())
		for id = random.Int32N(most); !allowed(id); id = (id + 1) % most {
			if tried++; tried > int(most) {
				return 0, fmt.Errorf("the constraint allows no token")
			}
		}
		for _, end := range []string{`"`, `}`, `]`, `",`, `<tool_call>`} {
			if ids := m.tok.Encode(end); len(ids) == 1 && allowed(ids[0]) && random.IntN(2) == 0 {
				id = ids[0]
			}
		}
		if stop := m.tok.StopIDs()[0]; allowed(stop) {
			id = stop
		}
	}
	return id, c.Accept(id)
}

// schemas are schemas that can be enforced.
var schemas = []string{
	`{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/definitions/n"}}, "required": ["a"]}`,
	`{"type": "object", "properties": {"answer": {"type": "integer"}, "why": {"type": "string", "maxLength": 8}}, "required": ["answer", "why"], "additionalProperties": false}`,
	`{"type": "object", "title": "Person", "properties": {"name": {"type": "string", "description": "a name"}, "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null}}, "required": ["name"]}`,
	`{"$defs": {"Color": {"enum": ["red", "grün"], "type": "string"}}, "type": "object", "properties": {"colors": {"type": "array", "items": {"$ref": "#/$defs/Color"}, "minItems": 1, "maxItems": 3}}, "required": ["colors"]}`,
	`{"type": "object", "properties": {"n": {"type": "number", "minimum": 0, "maximum": 10}, "i": {"type": "integer", "exclusiveMinimum": 3, "maximum": 12}, "b": {"type": "boolean"}}, "required": ["n", "i", "b"]}`,
	`{"type": "object", "properties": {"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, "day": {"type": "string", "format": "date"}}, "required": ["id", "day"]}`,
	`{"type": "object", "properties": {"kind": {"const": "circle"}, "at": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "minItems": 2, "maxItems": 2, "items": false}}, "required": ["kind", "at"]}`,
	`{"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "maxItems": 2}`,
	`{"anyOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}]}`,
	`{"type": "integer", "multipleOf": 5}`,
	`{"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}, {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]}`,
	`{"$defs": {"Node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/Node"}`,
}

// TestSchemasAreEnforced checks that the content is JSON of the schema for any model, with and without thinking before
// it.
func TestSchemasAreEnforced(t *testing.T) {
	for _, name := range []string{"smollm2", "qwen3"} {
		s := newAlone(t, name)
		ended := 0
		for _, schema := range schemas {
			for _, s.says = range []string{"Certainly!", `{"answer": 3, "colors": [`, "<think>\nhm\n</think>\n\n{"} {
				got := s.chat(jsonObject{"messages": []jsonObject{textMessage("user", "?")}, "max_tokens": 300,
					"response_format": jsonObject{"type": "json_schema", "json_schema": jsonObject{"name": "x", "schema": json.RawMessage(schema)}}})
				if got.Finish == "length" {
					continue // the reply did not end
				}
				ended++
				if err := constrained.Validate(json.RawMessage(schema), got.Content); err != nil {
					t.Errorf("%s, %s: %q: %v", name, schema, got.Content, err)
				}
				if thinks := name == "qwen3" && strings.HasPrefix(s.says, "<think>"); thinks != (got.Reasoning == "hm") {
					t.Errorf("%s, %q: reasoning %q", name, s.says, got.Reasoning)
				}
			}
		}
		if most := 3 * len(schemas); ended < most/2 {
			t.Errorf("%s: only %d of %d replies ended", name, ended, most)
		}
	}
}

// TestChoicesAreEnforced: if a function must be called, the reply calls it with arguments that fit its schema.
func TestChoicesAreEnforced(t *testing.T) {
	tools := []jsonObject{{"type": "function", "function": jsonObject{"name": "add", "parameters": json.RawMessage(schemas[1])}}, {"type": "function", "function": jsonObject{"name": "wait"}}}
	for _, name := range []string{"smollm2", "qwen3"} {
		s := newAlone(t, name)
		for _, s.says = range []string{"No.", "<think>\nhm\n</think>\n\nNo.", "<tool_call>\n{\"name\": \"wait\", \"arguments\": {}}\n</tool_call>\n<tool_call>"} {
			for i, choice := range []any{"required", jsonObject{"type": "function", "function": jsonObject{"name": "add"}}} {
				got, _ := s.stream(jsonObject{"messages": []jsonObject{textMessage("user", "?")}, "tools": tools, "tool_choice": choice, "max_tokens": 300})
				if got.Finish == "length" {
					continue
				}
				if got.Finish != "tool_calls" || i == 1 && len(got.ToolCalls) != 1 {
					t.Errorf("%s, %v: got reply %+v", name, choice, got)
				}
				for _, c := range got.ToolCalls {
					if i == 1 && c.Function.Name != "add" || c.Function.Name == "add" && constrained.Validate(json.RawMessage(schemas[1]), c.Function.Arguments) != nil {
						t.Errorf("%s, %v: got call %+v", name, choice, c)
					}
				}
			}
		}
	}
}

// TestFormsInTraining: in training the model is not constrained, and its reply reaches the client. A reply that violates the form makes the
// format of the conversation invalid.
func TestFormsInTraining(t *testing.T) {
	for i, c := range []struct {
		says  string
		more  jsonObject
		valid bool
	}{
		{"No.", jsonObject{"response_format": jsonObject{"type": "json_object"}}, false},
		{`{"a": 1}`, jsonObject{"response_format": jsonObject{"type": "json_object"}}, true},
		{"{\"a\": 1}\nObservation:", jsonObject{"response_format": jsonObject{"type": "json_object"}, "stop": []string{"Observation:"}}, true},
		{`[1]`, jsonObject{"response_format": jsonObject{"type": "json_object"}}, false},
		{`{"a": 1}`, jsonObject{"response_format": jsonObject{"type": "json_schema", "json_schema": jsonObject{"name": "x", "schema": json.RawMessage(schemas[1])}}}, false},
		{`{"answer": 1, "why": "so"}`, jsonObject{"response_format": jsonObject{"type": "json_schema", "json_schema": jsonObject{"name": "x", "schema": json.RawMessage(schemas[1])}}}, true},
		{"No.", jsonObject{"tools": calculator, "tool_choice": "required"}, false},
		{calculation, jsonObject{"tools": calculator, "tool_choice": "required"}, true},
		{calculation, jsonObject{"tools": calculator, "tool_choice": jsonObject{"type": "function", "function": jsonObject{"name": "calculator"}}}, true},
	} {
		s := newStage(t, tokenizertest.Golden(t, "smollm2"), func(string) string { return c.says })
		s.chat("planner", ticketOf("q", 1), []jsonObject{textMessage("user", "?")}, c.more)
		if asked := s.models["planner"].asked[0]; asked.Constraint != nil {
			t.Errorf("case %d: the model was constrained", i)
		}
		if got := s.finish("planner", ticketOf("q", 1)); got[0].Valid != c.valid {
			t.Errorf("case %d: %q: got valid=%v", i, c.says, got[0].Valid)
		}
	}
}
