// Package tool contains the interface of the tools that agents call, and the wrappers around
// tools (limits, attempts, a cache, a meter). It also contains the tools without a package of
// their own: a calculator, and functions. The packages below it are the other tools.
package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// Tool is one function that a model can call. Call may run on several goroutines at once. It must end when ctx ends and
// leave no goroutine behind. The model reads its error, which should state what to do differently.
type Tool interface {
	Name() string
	Description() string
	Schema() json.RawMessage // JSON Schema of the arguments, of type object
	Call(ctx context.Context, args json.RawMessage) (string, error)
}

// Named returns t under another name, for example to offer a search tool for each of two corpora.
func Named(t Tool, name string) Tool { return function{name, t.Description(), t.Schema(), t.Call} }

// Func returns a tool with one string argument that calls a function.
func Func(name, description, argument, meaning string, call func(ctx context.Context, argument string) (string, error)) Tool {
	type property struct {
		Type        string `json:"type"`
		Description string `json:"description,omitempty"`
	}
	// A struct keeps the usual order of keys: models read the schema as text.
	schema, _ := json.Marshal(struct { // strings always marshal
		Type       string              `json:"type"`
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required"`
	}{"object", map[string]property{argument: {"string", meaning}}, []string{argument}})
	return function{name, description, schema, func(ctx context.Context, args json.RawMessage) (string, error) {
		text, err := StringArgument(args, argument)
		if err != nil {
			return "", err
		}
		return call(ctx, text)
	}}
}

// function is a tool whose methods return its fields.
type function struct {
	name, description string
	schema            json.RawMessage
	call              callFunc
}

type callFunc = func(ctx context.Context, args json.RawMessage) (string, error)

// withCall returns t with another Call.
func withCall(t Tool, call callFunc) Tool {
	return function{t.Name(), t.Description(), t.Schema(), call}
}

func (f function) Name() string            { return f.name }
func (f function) Description() string     { return f.description }
func (f function) Schema() json.RawMessage { return f.schema }

func (f function) Call(ctx context.Context, args json.RawMessage) (string, error) {
	return f.call(ctx, args)
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

// Origin identifies the conversation of a tool call, so that a server with state can keep conversations apart.
type Origin struct {
	Query      string
	Row        json.RawMessage // the query's row with all its columns, including the reference answer; nil if the task has no rows
	Rollout    int
	Agent      string
	Invocation int // 0 for the main agent
	Call       int // number of earlier calls of the same tool in the conversation
}

type originKey struct{}

// WithOrigin returns ctx with the origin of the calls made with it.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns the origin in ctx; ok is false if ctx has no origin.
func OriginOf(ctx context.Context) (o Origin, ok bool) {
	o, ok = ctx.Value(originKey{}).(Origin)
	return o, ok
}
