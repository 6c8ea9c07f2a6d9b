// Package tool holds what an agent can call besides other agents: search over a local corpus, a
// calculator, a sandboxed interpreter, and the tools of any MCP server.
package tool

import (
	"context"
	"encoding/json"
)

// Tool is one function that a model can call. Call may run on any number of goroutines at once, honours
// ctx and leaves no goroutine behind. Its error is read by the model, so it says what to do differently.
type Tool interface {
	Name() string
	Description() string
	Schema() json.RawMessage // JSON Schema of the arguments, an object
	Call(ctx context.Context, args json.RawMessage) (string, error)
}

// Named is t under another name: two corpora, two search tools.
func Named(t Tool, name string) Tool { return named{t, name} }

type named struct {
	Tool
	name string
}

func (n named) Name() string { return n.name }

// Origin says in which conversation a tool is called: a server with state of its own can keep conversations apart.
type Origin struct {
	Query      string
	Row        json.RawMessage // the query's row with all its columns, the reference answer too; nil where the task has no rows
	Rollout    int
	Agent      string
	Invocation int // 0 for the main agent
}

type originKey struct{}

// WithOrigin is ctx with where calls made with it come from.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf is what WithOrigin put into ctx.
func OriginOf(ctx context.Context) (o Origin, ok bool) {
	o, ok = ctx.Value(originKey{}).(Origin)
	return o, ok
}
