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
