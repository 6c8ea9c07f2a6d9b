package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// Func returns a tool with one string argument that calls a function.
func Func(name, description, argument, meaning string, call func(ctx context.Context, argument string) (string, error)) Tool {
	type property struct {
		Type        string `json:"type"`
		Description string `json:"description,omitempty"`
	}
	// A struct keeps the usual order of keys: models read the schema as text.
	schema, err := json.Marshal(struct {
		Type       string              `json:"type"`
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required"`
	}{"object", map[string]property{argument: {"string", meaning}}, []string{argument}})
	if err != nil { // cannot happen: strings always marshal
		schema = json.RawMessage(`{"type":"object"}`)
	}
	return function{name, description, argument, schema, call}
}

type function struct {
	name, description, argument string
	schema                      json.RawMessage
	call                        func(context.Context, string) (string, error)
}

func (f function) Name() string            { return f.name }
func (f function) Description() string     { return f.description }
func (f function) Schema() json.RawMessage { return f.schema }

func (f function) Call(ctx context.Context, args json.RawMessage) (string, error) {
	text, err := StringArgument(args, f.argument)
	if err != nil {
		return "", err
	}
	return f.call(ctx, text)
}

// StringArgument returns the string argument `name` of a call.
func StringArgument(args json.RawMessage, name string) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(args, &fields); err != nil {
		return "", fmt.Errorf("the arguments are not a JSON object: %w", err)
	}
	var text *string
	if err := json.Unmarshal(bytes.TrimSpace(fields[name]), &text); err != nil || text == nil {
		return "", fmt.Errorf("the argument %q must be a string", name)
	}
	return *text, nil
}
