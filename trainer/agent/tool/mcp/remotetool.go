package mcp

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

type remoteTool struct {
	server            *Client
	name, description string
	schema            json.RawMessage
}

func (t remoteTool) Name() string            { return t.server.cfg.Prefix + t.name }
func (t remoteTool) Description() string     { return t.description }
func (t remoteTool) Schema() json.RawMessage { return t.schema }

func (t remoteTool) Call(ctx context.Context, args json.RawMessage) (string, error) {
	params := &mcp.CallToolParams{Name: t.name, Arguments: args}
	if o, ok := tool.OriginOf(ctx); ok {
		params.Meta = mcp.Meta{"mgrpo/query": o.Query, "mgrpo/rollout": o.Rollout, "mgrpo/agent": o.Agent, "mgrpo/invocation": o.Invocation}
		if o.Row != nil {
			params.Meta["mgrpo/row"] = o.Row
		}
	}
	var busy *retry.Transient
	result, err := t.server.call(context.WithValue(ctx, busyKey{}, &busy), params)
	if err != nil {
		var answer *jsonrpc.Error
		replied := errors.As(err, &answer)
		switch {
		case busy != nil:
		case replied && answer.Code == jsonrpc.CodeInvalidParams:
			return "", err
		case errors.As(err, &busy):
		case replied:
			return "", tool.Failed(err)
		default: // another attempt may get a reply
			busy = &retry.Transient{}
		}
		return "", &retry.Transient{Err: tool.Failed(err), After: busy.After}
	}
	text, err := contentText(result)
	switch {
	case err != nil:
		return "", tool.Failed(err)
	case result.IsError:
		if text == "" {
			text = t.name + " failed without saying why"
		}
		return "", errors.New(text)
	}
	return text, nil
}
