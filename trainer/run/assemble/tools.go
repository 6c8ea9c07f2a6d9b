package assemble

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/mcp"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/sandbox"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/search"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/web"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// cache opens the configured cache. It returns nil if there is none.
func cache(cfg *config.Config) (*recorded.Cache, error) {
	if cfg.Cache.Dir == "" {
		return nil, nil
	}
	c, err := recorded.Open(cfg.Resolve(cfg.Cache.Dir), cfg.Cache.Mode == "replay")
	if err != nil {
		return nil, cfg.Fault("cache.dir", err)
	}
	return c, nil
}

// openTools makes the tools that an agent names, each with its limits. note, if set, is called when a step takes long.
func openTools(ctx context.Context, cfg *config.Config, names []string, note func(string)) (*play.Toolbox, error) {
	kept, err := cache(cfg)
	if err != nil {
		return nil, err
	}
	b := &play.Toolbox{}
	for _, name := range names {
		c := cfg.Tool(name)
		if c == nil {
			return nil, errors.Join(fmt.Errorf("tools.%s: there is no tool of this name", name), b.Close())
		}
		own := kept
		if !c.Base().Cached {
			own = nil
		}
		o, err := openTool(ctx, cfg, c, own, b.Lost, note)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("tools.%s: %w", name, err), b.Close())
		}
		o.add(c.Base(), own, b)
	}
	return b, nil
}

// openedTool holds the tools of one entry of the configuration.
type openedTool struct {
	tools   []tool.Tool
	close   func() error                // nil: nothing to close
	secrets []string                    // removed from outputs
	service string                      // key for the cache; "": the tool does not call an outside service
	most    int                         // largest number of calls at once; 0: any
	check   func(json.RawMessage) error // refuses invalid arguments before a call; may be nil
}

// singleTool returns the only tool of an entry, under the entry's name.
func singleTool(c config.Tool, t tool.Tool) []tool.Tool {
	return []tool.Tool{tool.Named(t, c.Base().Name)}
}

// add adds the tools to a toolbox, with the limits of a conversation.
func (o openedTool) add(c *config.ToolBase, kept *recorded.Cache, b *play.Toolbox) {
	if o.close != nil {
		b.OnClose(o.close)
	}
	for _, t := range o.wrapped(c, kept, b.Retried) {
		b.Add(t, tool.Limits{Calls: c.MaxCalls, Bytes: c.MaxOutput})
	}
}

// wrapped returns the tools with retries, all behind one limit of concurrent calls, and the cache around that limit.
func (o openedTool) wrapped(c *config.ToolBase, kept *recorded.Cache, retried func(name string)) (tools []tool.Tool) {
	parallel := c.Parallel
	if o.most > 0 && (parallel == 0 || parallel > o.most) {
		parallel = o.most
	}
	gate := tool.NewGate(parallel, c.Rate)
	for _, t := range o.tools {
		name := t.Name()
		t = tool.WithCallPolicy(t, tool.CallPolicy{Timeout: c.Timeout, Retries: c.Retries, Gate: gate, Secrets: o.secrets, Retried: func() { retried(name) }})
		if o.service != "" && kept != nil {
			service := o.service
			if c.Kind == "mcp" {
				service += " " + name
			}
			t = tool.Cached(t, kept, service, o.check)
		}
		tools = append(tools, t)
	}
	return tools
}

func openTool(ctx context.Context, cfg *config.Config, c config.Tool, kept *recorded.Cache, lost, note func(string)) (o openedTool, err error) {
	switch c := c.(type) {
	case *config.Calculator:
		o.tools = singleTool(c, tool.Calculator())
	case *config.Python:
		set := sandbox.PythonOptions{Interpreter: c.Interpreter, Memory: c.MaxMemory, Files: c.MaxFiles, Output: c.MaxOutput, Time: c.Timeout}
		python, err := sandbox.NewPython(ctx, set)
		if err != nil {
			return o, err
		}
		o.tools, o.most = singleTool(c, python), cgroup.UsableCores().N
	case *config.Search:
		set := search.CorpusOptions{Corpus: cfg.Resolve(c.Corpus), Results: c.Results, Note: note}
		if c.Index != "" {
			set.Index = cfg.Resolve(c.Index)
		}
		s, err := search.NewCorpus(ctx, set)
		if err != nil {
			return o, err
		}
		o.tools, o.close = singleTool(c, s), s.Close
	case *config.Visit:
		v, err := newVisit(c)
		if err != nil {
			return o, err
		}
		o = openedTool{tools: singleTool(c, v), close: v.Close, service: v.Service(), check: v.Check}
	case *config.Retriever:
		set := search.RetrieverOptions{URL: c.URL, TokenEnv: c.TokenEnv, Results: c.Results, Request: c.Request, Response: c.Response}
		if kept.Replays() { // the service is never called
			set.TokenEnv = ""
		}
		r, err := search.NewRetriever(set)
		if err != nil {
			return o, err
		}
		o = openedTool{tools: singleTool(c, r), close: r.Close, secrets: r.Secrets(), service: r.Service()}
	case *config.MCP:
		set := mcp.Options{Name: c.Name, Command: c.Command, Dir: cfg.Resolve(c.Dir), Env: c.Env, URL: c.URL, TokenEnv: c.TokenEnv, Prefix: c.Prefix,
			Only: c.Only, Cache: kept, Lost: lost, Note: note}
		ctx, cancel := context.WithTimeout(ctx, max(c.Timeout, mcp.StartTime))
		defer cancel()
		server, err := mcp.Connect(ctx, set)
		if err != nil {
			return o, err
		}
		o = openedTool{tools: server.Tools(), close: server.Close, secrets: set.Secrets(), service: set.Service()}
	default:
		return o, fmt.Errorf("a tool of kind %s cannot be opened", c.Base().Kind)
	}
	return o, nil
}

func newVisit(c *config.Visit) (*web.Visit, error) {
	set := web.VisitOptions{Hosts: c.Hosts, Schemes: c.Schemes, Bytes: c.MaxPage, Agent: c.UserAgent, Links: c.Links}
	for _, n := range c.Networks {
		network, err := netip.ParsePrefix(n)
		if err != nil {
			return nil, err
		}
		set.Networks = append(set.Networks, network.Masked())
	}
	return web.NewVisit(set), nil
}
