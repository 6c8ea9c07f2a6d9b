package assemble

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/play"
)

// Tools makes the tools that an agent names, each within its time and output limits. A name without an
// entry in the configuration's tools is a built-in of that kind.
func Tools(ctx context.Context, cfg *config.Config, names []string) (*play.Toolbox, error) {
	b := &play.Toolbox{}
	for _, name := range names {
		c := cfg.Tool(name)
		if c == nil {
			c = &config.Tool{Name: name, Kind: name, Timeout: play.DefaultToolTime, MaxOutput: play.DefaultToolOutput}
		}
		if err := openTool(ctx, cfg, c, b); err != nil {
			return nil, errors.Join(fmt.Errorf("tools.%s: %w", name, err), b.Close())
		}
	}
	return b, nil
}

func openTool(ctx context.Context, cfg *config.Config, c *config.Tool, b *play.Toolbox) error {
	limits := tool.Limits{Timeout: c.Timeout, Bytes: c.MaxOutput}
	switch c.Kind {
	case "calculator":
		b.Add(tool.Named(tool.Calculator(), c.Name), limits)
	case "code":
		code := tool.NewCode(tool.CodeConfig{Steps: uint64(c.MaxSteps), Output: c.MaxOutput})
		b.OnClose(code.Close)
		b.Add(tool.Named(code, c.Name), limits)
	case "search":
		s, err := tool.NewSearch(ctx, tool.SearchConfig{Corpus: cfg.Resolve(c.Corpus), Results: c.Results})
		if err != nil {
			return err
		}
		b.OnClose(s.Close)
		b.Add(tool.Named(s, c.Name), limits)
	case "mcp":
		set := tool.MCPConfig{Command: c.Command, Dir: cfg.Resolve(c.Dir), Env: c.Env, URL: c.URL, TokenEnv: c.TokenEnv, Lost: b.Lost}
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		server, err := tool.ConnectMCP(ctx, set)
		if err != nil {
			return err
		}
		b.OnClose(server.Close)
		limits.Secrets = set.Secrets()
		for _, t := range server.Tools() {
			b.Add(t, limits)
		}
	default:
		return fmt.Errorf("there is no tool of this name and no built-in kind %q", c.Kind)
	}
	return nil
}
