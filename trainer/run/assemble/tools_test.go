package assemble

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// A page is visited with the configured settings. A tool that makes requests retries unless the configuration disables that.
func TestToolsOfConfiguration(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `<p>read by %s, see <a href="/b">this</a>`, r.UserAgent())
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	cfg, err := config.Parse("t.yaml", fmt.Appendf(nil, `
run: {name: t}
agents: {a: {role: main, model: m}}
tools:
  home: {kind: visit, hosts: [%q], schemes: [http], networks: [127.0.0.0/8], user_agent: reader/1.0, links: true}
  away: {kind: visit, hosts: [%q], schemes: [http], retries: 0}
  small: {kind: visit, hosts: [%q], schemes: [http], networks: [127.0.0.0/8], max_page: 10}
  mcp: {kind: mcp, url: %q}
`, host, host, host, server.URL), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"home": "read by reader/1.0, see [this](" + server.URL + "/b)", "away": "not a public address", "small": "more than 10 bytes"} {
		v, err := newVisit(cfg.Tool(name).(*config.Visit))
		if err != nil {
			t.Fatal(err)
		}
		out, err := v.Call(t.Context(), fmt.Appendf(nil, `{"url": %q}`, server.URL))
		if said := fmt.Sprint(out, err); !strings.Contains(said, want) {
			t.Errorf("%s: %s, want %s", name, said, want)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]int{"home": 2, "away": 0, "mcp": 0} {
		if got := cfg.Tool(name).Base().Retries; got != want {
			t.Errorf("%s: %d retries, want %d", name, got, want)
		}
	}
}

// All tools of an entry, for example of an MCP server, share one limit on parallel calls.
func TestToolsShareGate(t *testing.T) {
	var now, most atomic.Int32
	slow := func(name string) tool.Tool {
		return tool.Func(name, "", "x", "", func(context.Context, string) (string, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(20 * time.Millisecond)
			now.Add(-1)
			return "", nil
		})
	}
	tools := openedTool{tools: []tool.Tool{slow("a"), slow("b")}}.wrapped(&config.ToolBase{Parallel: 1}, nil, nil)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			if _, err := tools[i%2].Call(t.Context(), []byte(`{"x":""}`)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n != 1 {
		t.Errorf("%d calls at once, but the entry allows one", n)
	}
}
