package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
)

// maxMCPTools is the number of tools that a server may list.
const maxMCPTools = 10_000

// list asks the server for its tools, once: a model's tools do not change within a run. Of tools with the same name the first is kept,
// and a page that was read before ends the list: some servers always name a next page.
func (m *Client) list(ctx context.Context) error {
	var names []string
	known, pages, listed := map[string]bool{}, map[string]bool{"": true}, 0
	for params := (&mcp.ListToolsParams{}); ; {
		page, err := m.session.ListTools(ctx, params)
		if err != nil {
			return err
		}
		if listed += len(page.Tools); listed > maxMCPTools {
			return fmt.Errorf("more than %d tools", maxMCPTools)
		}
		for _, t := range page.Tools {
			if t == nil || known[t.Name] {
				continue
			}
			known[t.Name], names = true, append(names, t.Name)
			if err := m.addTool(t); err != nil {
				return err
			}
		}
		if params.Cursor = page.NextCursor; pages[params.Cursor] {
			return m.cfg.missing(names)
		}
		if pages[params.Cursor] = true; len(pages) > maxMCPTools {
			return fmt.Errorf("more than %d pages of tools", maxMCPTools)
		}
	}
}

// addTool adds a listed tool, unless it should not be offered.
func (m *Client) addTool(t *mcp.Tool) error {
	if !m.cfg.selects(t.Name) {
		return nil
	}
	schema, err := json.Marshal(t.InputSchema)
	if err != nil {
		return fmt.Errorf("%s: its schema: %w", t.Name, err)
	}
	m.tools = append(m.tools, remoteTool{m, t.Name, t.Description, schema})
	return nil
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
