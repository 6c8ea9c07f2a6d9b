package mcp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

// TestMCPReplay: a server whose tools and answers were recorded is neither started nor reached in a replay.
func TestMCPReplay(t *testing.T) {
	dir := t.TempDir()
	cfg := stdioConfig(t)
	greet := func(cfg Options, name string) (string, error) {
		m, err := Connect(t.Context(), cfg)
		if err != nil {
			return "", err
		}
		defer func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}()
		tools := m.Tools()
		i := slices.IndexFunc(tools, func(t tool.Tool) bool { return t.Name() == "greet" })
		if schema := string(tools[i].Schema()); len(tools) != 9 || !strings.Contains(schema, `"whom to greet"`) || tools[i].Description() != "Greets." {
			t.Errorf("got %d tools; greet: description %q, schema %s", len(tools), tools[i].Description(), schema)
		}
		return tool.Cached(tools[i], cfg.Cache, cfg.Service(), nil).Call(t.Context(), tooltest.Arg(t, "name", name))
	}
	cfg.Cache = tooltest.Cache(t, dir, false)
	for range 2 { // the second time is a resumed run, which finds the list that it recorded
		if got, err := greet(cfg, "Ada"); got != "Hello Ada." {
			t.Fatalf("%q, %v", got, err)
		}
	}
	changed := cfg
	changed.Env = []string{mcpServerEnv}
	if _, err := greet(changed, "Ada"); err != nil { // its answers are recorded as another server's
		t.Error(err)
	}
	t.Setenv(mcpServerEnv, "absent")
	cfg.Cache = tooltest.Cache(t, dir, true)
	if got, err := greet(cfg, "Ada"); got != "Hello Ada." {
		t.Errorf("got %q, error %v", got, err)
	}
	if _, err := greet(cfg, "Bo"); !errors.Is(err, recorded.ErrMissing) {
		t.Errorf("a call that was not recorded: got error %v", err)
	}
	cfg.Command = []string{"another"}
	if _, err := greet(cfg, "Ada"); !errors.Is(err, recorded.ErrMissing) {
		t.Errorf("a server that was not recorded: got error %v", err)
	}
}

// TestMCPOtherTools: a server whose tools have changed since they were recorded is an error.
func TestMCPOtherTools(t *testing.T) {
	cfg := stdioConfig(t)
	cfg.Cache = tooltest.Cache(t, t.TempDir(), false)
	other := func(context.Context) (recorded.Answer, error) {
		return recorded.Answer{Text: `[{"name": "greet"}]`}, nil
	}
	if _, err := cfg.Cache.Answer(t.Context(), cfg.listing(), other); err != nil {
		t.Fatal(err)
	}
	if m, err := Connect(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "tools differ") {
		t.Errorf("got error %v, want that the tools differ", err)
		_ = m.Close()
	}
}

// TestRepeatedTools: repeated tools count, too, so that a server cannot send them without end.
func TestRepeatedTools(t *testing.T) {
	repeated := strings.Repeat(`{"name":"a","inputSchema":{"type":"object"}},`, maxMCPTools)
	_, err := Connect(t.Context(), Options{URL: listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.Replace(string(mcpReply(request)), `"tools":[`, `"tools":[`+repeated, 1))
	}))})
	if err == nil || !strings.Contains(err.Error(), "more than 10000 tools") {
		t.Errorf("got error %v", err)
	}
}
