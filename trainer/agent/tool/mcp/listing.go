package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
)

// maxMCPTools is the number of tools that a server may list.
const maxMCPTools = 10_000

// list asks the server for its tools, once: a model's tools do not change within a run.
func (m *Client) list(ctx context.Context) error {
	var seen []string
	for t, err := range m.session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if seen = append(seen, t.Name); len(seen) > maxMCPTools {
			return fmt.Errorf("more than %d tools", maxMCPTools)
		}
		if !m.cfg.selects(t.Name) {
			continue
		}
		schema, err := json.Marshal(t.InputSchema)
		if err != nil {
			return fmt.Errorf("%s: its schema: %w", t.Name, err)
		}
		m.tools = append(m.tools, remoteTool{m, t.Name, t.Description, schema})
	}
	return m.cfg.missing(seen)
}

// selects reports whether a tool of the server should be offered.
func (c Options) selects(name string) bool { return len(c.Only) == 0 || slices.Contains(c.Only, name) }

// missing returns an error that names the first configured tool that the server does not have.
func (c Options) missing(have []string) error {
	for _, name := range c.Only {
		if !slices.Contains(have, name) {
			return fmt.Errorf("there is no tool %q (only): the server has %s", name, strings.Join(have, ", "))
		}
	}
	return nil
}

// cachedTool is a tool in the cache's list.
type cachedTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
}

// cacheTools stores the list of the tools in the cache. A list that is already stored must be the same.
func (m *Client) cacheTools(ctx context.Context) error {
	var list []cachedTool
	for _, t := range m.tools {
		list = append(list, cachedTool{t.(remoteTool).name, t.Description(), t.Schema()})
	}
	text, _ := json.Marshal(list) // texts, and schemas that json.Marshal wrote
	stored, err := m.cfg.Cache.Answer(ctx, m.cfg.listing(), func(context.Context) (recorded.Answer, error) { return recorded.Answer{Text: string(text)}, nil })
	if err == nil && stored.Text != string(text) {
		err = errors.New("the server's tools differ from those recorded in the cache: use another folder (cache.dir)")
	}
	return err
}

// readCachedTools reads the list of the tools from the cache.
func (m *Client) readCachedTools(ctx context.Context) error {
	stored, err := m.cfg.Cache.Answer(ctx, m.cfg.listing(), nil)
	if err != nil {
		return err
	}
	var list []cachedTool
	if err := json.Unmarshal([]byte(stored.Text), &list); err != nil {
		return fmt.Errorf("the list in the cache: %w", err)
	}
	if len(list) > maxMCPTools {
		return fmt.Errorf("more than %d tools", maxMCPTools)
	}
	for _, t := range list {
		m.tools = append(m.tools, remoteTool{m, t.Name, t.Description, t.Schema})
	}
	return nil
}

func (c Options) listing() recorded.Question {
	return recorded.Question{Service: c.Service(), Text: "tools"}
}
