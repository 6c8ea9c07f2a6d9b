// Package tool has the tools that agents call: search over a local corpus, web pages, retrievers, a calculator, a sandboxed
// interpreter, and the tools of any MCP server; and what surrounds them: limits, attempts, a cache, a meter.
package tool

import (
	"context"
	"encoding/json"
)

// Tool is one function that a model can call. Call may run on several goroutines at once. It must end when ctx ends and
// leave no goroutine behind. The model reads its error, which should say what to do differently.
type Tool interface {
	Name() string
	Description() string
	Schema() json.RawMessage // JSON Schema of the arguments, of type object
	Call(ctx context.Context, args json.RawMessage) (string, error)
}

// Named returns t under another name, for example to offer a search tool for each of two corpora.
func Named(t Tool, name string) Tool { return named{t, name} }

type named struct {
	Tool
	name string
}

func (n named) Name() string { return n.name }

// Origin names the conversation of a tool call, so that a server with state can keep conversations apart.
type Origin struct {
	Query      string
	Row        json.RawMessage // the query's row with all its columns, the reference answer too; nil where the task has no rows
	Rollout    int
	Agent      string
	Invocation int // 0 for the main agent
	Call       int // calls of the same tool earlier in the conversation
}

type originKey struct{}

// WithOrigin returns ctx with the origin of the calls made with it.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns the origin in ctx; ok is false if there is none.
func OriginOf(ctx context.Context) (o Origin, ok bool) {
	o, ok = ctx.Value(originKey{}).(Origin)
	return o, ok
}
