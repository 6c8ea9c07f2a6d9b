package tool

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
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

// testMCPServer has a tool that answers, one that fails, one that never ends, one with output that is not text.
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
	return s
}

func stdioConfig(t *testing.T) MCPConfig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(mcpServerEnv, "1")
	t.Setenv("MGRPO_TEST_DAY", "Monday")
	t.Setenv("MGRPO_TEST_UNLISTED", "kept")
	return MCPConfig{Command: []string{self}, Env: []string{mcpServerEnv, "MGRPO_TEST_DAY"}}
}

func httpConfig(t *testing.T) MCPConfig {
	t.Helper()
	t.Setenv("MGRPO_TEST_DAY", "Monday")
	handler := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		if r.Header.Get("Authorization") != "Bearer sk-5" {
			return nil
		}
		return testMCPServer()
	}, nil)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		server.Close()
	})
	t.Setenv("MGRPO_TEST_TOKEN", "sk-5")
	return MCPConfig{URL: server.URL, TokenEnv: "MGRPO_TEST_TOKEN"}
}

func TestMCP(t *testing.T) {
	for name, config := range map[string]func(*testing.T) MCPConfig{"stdio": stdioConfig, "http": httpConfig} {
		t.Run(name, func(t *testing.T) {
			m, err := ConnectMCP(t.Context(), config(t))
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

func testMCPTools(t *testing.T, m *MCP) {
	tools := map[string]Tool{}
	for _, tool := range m.Tools() {
		tools[tool.Name()] = Limited(tool, Limits{Timeout: 10 * time.Second, Bytes: 100})
	}
	names := make([]string, 0, len(tools))
	for name := range tools {
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"fail", "flood", "greet", "picture", "structured", "wait"}; !slices.Equal(names, want) {
		t.Fatalf("tools %v, want %v", names, want)
	}
	if schema := string(tools["greet"].Schema()); !strings.Contains(schema, `"whom to greet"`) || tools["greet"].Description() != "Greets." {
		t.Errorf("greet: %q, schema %s", tools["greet"].Description(), schema)
	}
	for name, want := range map[string]string{
		"greet":      "Hello Ada.",
		"fail":       "error: the archive is closed on Monday",
		"picture":    "[content that is not text: ImageContent]",
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
	quick := Limited(tools["wait"], Limits{Timeout: 50 * time.Millisecond})
	if _, err := quick.Call(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "longer than 50ms") {
		t.Errorf("wait: %v", err)
	}
	if out, err := tools["greet"].Call(t.Context(), []byte(`{"name": "Bo"}`)); err != nil || out != "Hello Bo." {
		t.Errorf("after a timeout: %q, %v", out, err)
	}
}

func TestMCPEnvironment(t *testing.T) {
	transport, err := stdioConfig(t).transport()
	if err != nil {
		t.Fatal(err)
	}
	env := fmt.Sprint(transport.(*mcp.CommandTransport).Command.Env)
	if strings.Contains(env, "MGRPO_TEST_UNLISTED") || !strings.Contains(env, "MGRPO_TEST_DAY=Monday") {
		t.Errorf("environment of the server: %s", env)
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
	if err := (&MCP{session: session}).Close(); err != nil {
		t.Fatal(err)
	}
	if cmd.ProcessState == nil {
		t.Error("the server's process was not waited for")
	}
}

func TestMCPRefuses(t *testing.T) {
	for name, cfg := range map[string]MCPConfig{
		"neither": {},
		"both":    {Command: []string{"x"}, URL: "http://x"},
		"no such": {Command: []string{"/no/such/program"}},
		"unset":   {Command: []string{"x"}, Env: []string{"MGRPO_TEST_NOT_SET"}},
	} {
		if m, err := ConnectMCP(t.Context(), cfg); err == nil {
			_ = m.Close()
			t.Errorf("%s: connected", name)
		}
	}
}

func TestMCPServerThatIsNone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if m, err := ConnectMCP(ctx, MCPConfig{Command: []string{"/bin/cat"}}); err == nil {
		_ = m.Close()
		t.Error("cat is taken for an MCP server")
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed with %v", r.Header)
	}))
	defer elsewhere.Close()
	redirecting := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer redirecting.Close()
	t.Setenv("MGRPO_TEST_TOKEN", "sk-5")
	if m, err := ConnectMCP(ctx, MCPConfig{URL: redirecting.URL, TokenEnv: "MGRPO_TEST_TOKEN"}); err == nil {
		_ = m.Close()
		t.Error("a redirect was accepted")
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestMCPSecrets(t *testing.T) {
	t.Setenv("MGRPO_TEST_KEY", "sk-9")
	t.Setenv("MGRPO_TEST_TOKEN", "sk-5")
	cfg := MCPConfig{URL: "https://host/mcp?key=sk-1", Env: []string{"MGRPO_TEST_KEY"}, TokenEnv: "MGRPO_TEST_TOKEN"}
	secrets := cfg.Secrets()
	for _, want := range []string{"sk-9", "sk-5"} {
		if !slices.Contains(secrets, want) {
			t.Errorf("%v lacks %s", secrets, want)
		}
	}
	if strings.Contains(cfg.String(), "sk-1") {
		t.Error(cfg.String())
	}
}
