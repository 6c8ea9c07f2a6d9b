package mcp

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

// mcpServerEnv makes the test binary an MCP server on stdio.
const mcpServerEnv = "MGRPO_TEST_MCP_SERVER"

func serveTestMCP() {
	if err := testMCPServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

type greeting struct {
	Name string `json:"name" jsonschema:"whom to greet"`
}

// testMCPServer returns a server with a tool that answers, one that fails, one that never ends, and one whose output is not text.
func testMCPServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "greet", Description: "Greets."}, func(_ context.Context, _ *mcp.CallToolRequest, g greeting) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Hello " + g.Name + "."}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "fail"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("the archive is closed on " + os.Getenv("MGRPO_TEST_DAY"))
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	mcp.AddTool(s, &mcp.Tool{Name: "picture"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{MIMEType: "image/png", Data: []byte{1}}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "structured"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, map[string]int, error) {
		return nil, map[string]int{"n": 7}, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "flood"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("water ", 10000)}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "origin"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		return nil, r.Params.Meta, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "die_once"}, func(_ context.Context, _ *mcp.CallToolRequest, d death) (*mcp.CallToolResult, any, error) {
		if marker, err := os.OpenFile(d.Marker, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = marker.Close()
			fmt.Fprintln(os.Stderr, "fatal: no key "+os.Getenv("MGRPO_TEST_DAY"))
			os.Exit(3)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "alive"}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "die"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		os.Exit(4)
		return nil, nil, nil
	})
	return s
}

type death struct {
	Marker string `json:"marker"`
}

func stdioConfig(t *testing.T) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(mcpServerEnv, "1")
	t.Setenv("MGRPO_TEST_DAY", "Wednesday")
	t.Setenv("MGRPO_TEST_UNLISTED", "kept")
	return Options{Command: []string{self}, Env: []string{mcpServerEnv, "MGRPO_TEST_DAY"}}
}

// listen starts a server over HTTP and returns its address.
func listen(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		server.Close()
	})
	return server.URL
}

func httpConfig(t *testing.T) Options {
	t.Helper()
	t.Setenv("MGRPO_TEST_DAY", "Wednesday")
	handler := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		if r.Header.Get("Authorization") != "Bearer sk-5" {
			return nil
		}
		return testMCPServer()
	}, nil)
	url := listen(t, handler)
	t.Setenv("MGRPO_TEST_TOKEN", "sk-5")
	return Options{URL: url, TokenEnv: "MGRPO_TEST_TOKEN"}
}

func TestMCP(t *testing.T) {
	for name, config := range map[string]func(*testing.T) Options{"stdio": stdioConfig, "http": httpConfig} {
		t.Run(name, func(t *testing.T) {
			m, err := Connect(t.Context(), config(t))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := m.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			testMCPTools(t, m)
		})
	}
}

func testMCPTools(t *testing.T, m *Client) {
	tools := map[string]tool.Tool{}
	for _, each := range m.Tools() {
		tools[each.Name()] = tool.Limited(tool.WithCallPolicy(each, tool.CallPolicy{Timeout: time.Hour}), tool.Limits{Bytes: 100})
	}
	names := make([]string, 0, len(tools))
	for name := range tools {
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"die", "die_once", "fail", "flood", "greet", "origin", "picture", "structured", "wait"}; !slices.Equal(names, want) {
		t.Fatalf("tools %v, want %v", names, want)
	}
	if schema := string(tools["greet"].Schema()); !strings.Contains(schema, `"whom to greet"`) || tools["greet"].Description() != "Greets." {
		t.Errorf("greet: %q, schema %s", tools["greet"].Description(), schema)
	}
	for name, want := range map[string]string{
		"greet":      "Hello Ada.",
		"fail":       "error: the archive is closed on Wednesday",
		"picture":    "[an image that is not shown: image/png, 1 bytes]",
		"structured": `{"n":7}`,
		"flood":      strings.Repeat("water ", 10000)[:100] + "\n[59900 more bytes not shown]",
	} {
		args := "{}"
		if name == "greet" {
			args = `{"name": "Ada"}`
		}
		got, err := tools[name].Call(t.Context(), []byte(args))
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if _, err := tools["greet"].Call(t.Context(), []byte(`{"nom": "Ada"}`)); err == nil {
		t.Error("wrong arguments were accepted")
	}
	quick := tool.WithCallPolicy(tools["wait"], tool.CallPolicy{Timeout: 50 * time.Millisecond})
	if _, err := quick.Call(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "longer than 50ms") {
		t.Errorf("wait: %v", err)
	}
	if out, err := tools["greet"].Call(t.Context(), []byte(`{"name": "Bo"}`)); err != nil || out != "Hello Bo." {
		t.Errorf("after a timeout: %q, %v", out, err)
	}
}

func TestMCPEndsItsProcess(t *testing.T) {
	cfg := stdioConfig(t)
	transport, err := cfg.transport()
	if err != nil {
		t.Fatal(err)
	}
	cmd := transport.(*mcp.CommandTransport).Command
	session, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := newClient(cfg)
	m.session = &connection{ClientSession: session}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if cmd.ProcessState == nil {
		t.Error("the server's process was not waited for")
	}
}

// TestMCPLostServer checks that a server that dies during a call is restarted and the call repeated once. Its output on
// stderr is reported, without secrets. A call that kills it twice is a failure of the tool, and the next one works.
func TestMCPLostServer(t *testing.T) {
	cfg := stdioConfig(t)
	var notes []string
	cfg.Lost = func(why string) { notes = append(notes, why) }
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tools := map[string]tool.Tool{}
	for _, each := range m.Tools() {
		tools[each.Name()] = tool.WithCallPolicy(each, tool.CallPolicy{Timeout: time.Hour})
	}
	if got := tooltest.CallText(t, tools["die_once"], "marker", filepath.Join(t.TempDir(), "died")); got != "alive" {
		t.Errorf("a call during which the server died: got %q", got)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "last output on stderr:\nfatal: no key [redacted]") {
		t.Errorf("notes %q", notes)
	}
	if _, err := tools["die"].Call(t.Context(), []byte("{}")); !errors.Is(err, tool.ErrFailed) {
		t.Errorf("a call that kills the server each time: got error %v", err)
	}
	if got := tooltest.CallText(t, tools["greet"], "name", "Ada"); got != "Hello Ada." {
		t.Errorf("the call after it: got %q", got)
	}
}

// TestMCPBusy checks that a busy server is asked again at the time it names, and that its session continues.
func TestMCPBusy(t *testing.T) {
	cfg := httpConfig(t)
	inner, err := url.Parse(cfg.URL)
	if err != nil {
		t.Fatal(err)
	}
	var busy atomic.Int32
	proxy := httputil.NewSingleHostReverseProxy(inner)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if busy.Add(-1) >= 0 {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	cfg.URL = front.URL
	cfg.Lost = func(why string) { t.Errorf("lost: %s", why) }
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	at := slices.IndexFunc(m.Tools(), func(t tool.Tool) bool { return t.Name() == "greet" })
	var waits []time.Duration
	greet := func() string { // repeats a call to a busy server once
		out, err := m.Tools()[at].Call(t.Context(), tooltest.Arg(t, "name", "Ada"))
		var again *retry.Transient
		if errors.As(err, &again) {
			waits = append(waits, again.After)
			out, err = m.Tools()[at].Call(t.Context(), tooltest.Arg(t, "name", "Ada"))
		}
		if err != nil {
			return "error: " + err.Error()
		}
		return out
	}
	for _, c := range []struct {
		replies int32
		want    string
	}{{1, "Hello Ada."}, {2, "error: "}, {0, "Hello Ada."}} {
		busy.Store(c.replies)
		if got := greet(); !strings.HasPrefix(got, c.want) {
			t.Errorf("after %d replies that the server is busy: got %q", c.replies, got)
		}
	}
	if want := []time.Duration{7 * time.Second, 7 * time.Second}; !slices.Equal(waits, want) {
		t.Errorf("got waits %v, want %v", waits, want)
	}
}

// TestMCPGone: if a server cannot be started again, its calls fail with an error that reports it.
func TestMCPGone(t *testing.T) {
	cfg := stdioConfig(t)
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.cfg.Command = []string{"/no/such/program"}
	tools := map[string]tool.Tool{}
	for _, each := range m.Tools() {
		tools[each.Name()] = each
	}
	for _, call := range []struct{ name, args string }{{"die", "{}"}, {"greet", `{"name": "Ada"}`}} {
		if _, err := tools[call.name].Call(t.Context(), []byte(call.args)); !errors.Is(err, tool.ErrFailed) || !strings.Contains(err.Error(), "gone") {
			t.Errorf("%s: got error %v", call.name, err)
		}
	}
}

// TestMCPSlowStart: a server may take longer to start again than a call may last. A later call finds it started.
func TestMCPSlowStart(t *testing.T) {
	cfg := stdioConfig(t)
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	starts := filepath.Join(t.TempDir(), "starts")
	m.cfg.Command = []string{"/bin/sh", "-c", "echo >> " + starts + "; /bin/sleep 0.4; exec " + cfg.Command[0]}
	tools := map[string]tool.Tool{}
	for _, each := range m.Tools() {
		tools[each.Name()] = tool.WithCallPolicy(each, tool.CallPolicy{Timeout: 100 * time.Millisecond})
	}
	if _, err := tools["die"].Call(t.Context(), []byte("{}")); !errors.Is(err, tool.ErrTimeout) {
		t.Fatalf("got error %v", err)
	}
	for { // go test's time-out limits this loop
		out, err := tools["greet"].Call(t.Context(), []byte(`{"name": "Ada"}`))
		if errors.Is(err, tool.ErrTimeout) {
			continue
		}
		if err != nil || out != "Hello Ada." {
			t.Fatalf("%q, %v", out, err)
		}
		break
	}
	if text, err := os.ReadFile(starts); err != nil || len(text) != 1 {
		t.Errorf("%d starts, %v", len(text), err)
	}
}

// TestMCPExample checks that the server of the Python example answers, refuses, and reports the problem of a call.
func TestMCPExample(t *testing.T) {
	m, err := Connect(t.Context(), Options{Command: []string{"python3", "server.py"}, Dir: "../../../../examples/tool-in-python"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if len(m.Tools()) != 1 {
		t.Fatalf("%d tools", len(m.Tools()))
	}
	timetable := m.Tools()[0]
	if got := tooltest.CallText(t, timetable, "harbour", "Lomm"); got != "06:40" {
		t.Errorf("got %q", got)
	}
	if got := tooltest.CallText(t, timetable, "harbour", "Rome"); !strings.HasPrefix(got, "error: no ferry leaves Rome; harbours: Lomm") {
		t.Errorf("got %q", got)
	}
	if _, err := timetable.Call(t.Context(), []byte(`{}`)); err == nil || errors.Is(err, tool.ErrFailed) {
		t.Errorf("a call without its argument: got error %v, want a mistake of the caller", err)
	}
}
