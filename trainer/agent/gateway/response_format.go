package gateway

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway/constrained"
)

// responseFormat is the form that a reply's content must have.
type responseFormat struct {
	Type       string       `json:"type"` // text, json_object or json_schema
	JSONSchema *namedSchema `json:"json_schema"`
}

type namedSchema struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Strict      *bool           `json:"strict"` // a schema is always enforced
}

// anyObject is the schema of json_object.
var anyObject = json.RawMessage(`{"type":"object","additionalProperties":true}`)

// schema returns the JSON schema of the content, or nil if any text is allowed.
func (f *responseFormat) schema() json.RawMessage {
	switch {
	case f == nil || f.Type == "text":
		return nil
	case f.Type == "json_schema" && f.JSONSchema != nil:
		return f.JSONSchema.Schema
	}
	return anyObject
}

func (f *responseFormat) check() error {
	switch {
	case f == nil || f.Type == "text" || f.Type == "json_object":
		return nil
	case f.Type != "json_schema":
		return invalid("response_format", "the type is %q, but must be text, json_object or json_schema", f.Type)
	case f.JSONSchema == nil || len(f.JSONSchema.Schema) == 0:
		return invalid("response_format", "json_schema has no schema")
	}
	if err := constrained.CheckSchema(f.JSONSchema.Schema); err != nil {
		return invalid("response_format", "%v", err)
	}
	return nil
}

// toolChoice is the field tool_choice: auto, none, required, or a function by its name, which must be called.
type toolChoice struct {
	mode string // auto, none or required
	name string // name of the function that must be called; "": any function
}

// UnmarshalJSON reads the forms of /v1/chat/completions and of /v1/responses.
func (c *toolChoice) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &c.mode) == nil {
		if !slices.Contains([]string{"auto", "none", "required"}, c.mode) {
			return invalid("tool_choice", "it is %q, but must be auto, none, required or a function", c.mode)
		}
		return nil
	}
	var named struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(data, &named) != nil || named.Type != "function" || named.Name == "" && named.Function.Name == "" {
		return invalid("tool_choice", `it must be auto, none, required or {"type": "function", "function": {"name": ...}}`)
	}
	c.mode, c.name = "required", cmp.Or(named.Function.Name, named.Name)
	return nil
}

// checkChoice refuses a tool_choice that no reply can satisfy.
func (r *chatRequest) checkChoice() error {
	if r.ToolChoice.mode != "required" {
		return nil
	}
	var names []string
	for _, raw := range r.Tools {
		f := functionOf(raw)
		names = append(names, f.Function.Name)
		if len(f.Function.Parameters) > 0 && (r.ToolChoice.name == "" || r.ToolChoice.name == f.Function.Name) {
			if err := constrained.CheckSchema(f.Function.Parameters); err != nil {
				return invalid("tools", "the parameters of %s, which tool_choice may require: %v", f.Function.Name, err)
			}
		}
	}
	switch {
	case len(names) == 0:
		return invalid("tool_choice", "there are no tools")
	case r.ToolChoice.name != "" && !slices.Contains(names, r.ToolChoice.name):
		return invalid("tool_choice", "there is no function %q", r.ToolChoice.name)
	}
	return nil
}

// function is a definition of a function.
type function struct {
	Type     string `json:"type"`
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

func functionOf(raw json.RawMessage) (f function) {
	if json.Unmarshal(raw, &f) != nil {
		return function{}
	}
	return f
}

// violatedBy reports whether a reply violates the request's response_format or tool_choice.
func (r *chatRequest) violatedBy(sampled reply) bool {
	if r.ToolChoice.mode == "required" {
		return len(sampled.calls) == 0 || r.ToolChoice.name != "" &&
			slices.ContainsFunc(sampled.calls, func(c toolCall) bool { return c.Function.Name != r.ToolChoice.name })
	}
	schema := r.ResponseFormat.schema()
	return schema != nil && len(sampled.calls) == 0 && constrained.Validate(schema, sampled.text) != nil
}
