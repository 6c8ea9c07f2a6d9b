package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestMCPEnvironment(t *testing.T) {
	transport, err := stdioConfig(t).transport()
	if err != nil {
		t.Fatal(err)
	}
	env := fmt.Sprint(transport.(*mcp.CommandTransport).Command.Env)
	if strings.Contains(env, "MGRPO_TEST_UNLISTED") || !strings.Contains(env, "MGRPO_TEST_DAY=Wednesday") {
		t.Errorf("got environment of the server %s", env)
	}
}

func TestMCPRefuses(t *testing.T) {
	for name, cfg := range map[string]Options{
		"neither": {},
		"both":    {Command: []string{"x"}, URL: "http://x"},
		"no such": {Command: []string{"/no/such/program"}},
		"unset":   {Command: []string{"x"}, Env: []string{"MGRPO_TEST_NOT_SET"}},
	} {
		if m, err := Connect(t.Context(), cfg); err == nil {
			_ = m.Close()
			t.Errorf("%s: connected", name)
		}
	}
}

func TestConnectMCPRefusesOtherServers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if m, err := Connect(ctx, Options{Command: []string{"/bin/cat"}}); err == nil {
		_ = m.Close()
		t.Error("cat was accepted as an MCP server")
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed with %v", r.Header)
	}))
	defer elsewhere.Close()
	redirecting := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer redirecting.Close()
	t.Setenv("MGRPO_TEST_TOKEN", "sk-5")
	if m, err := Connect(ctx, Options{URL: redirecting.URL, TokenEnv: "MGRPO_TEST_TOKEN"}); err == nil {
		_ = m.Close()
		t.Error("a redirect was accepted")
	} else if !strings.Contains(err.Error(), "the server redirects to "+elsewhere.URL) {
		t.Errorf("the error does not name the address: %v", err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// TestMCPLostMessage: a redirect to the same server is refused if it turns a POST into a GET, which has no message.
func TestMCPLostMessage(t *testing.T) {
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther} {
		server := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/mcp/" {
				t.Errorf("%d: the redirect was followed with %s", code, r.Method)
			}
			http.Redirect(w, r, "/mcp/", code)
		}))
		_, err := Connect(t.Context(), Options{URL: server + "/mcp"})
		if err == nil || !strings.Contains(err.Error(), "the server redirects to "+server+"/mcp/") {
			t.Errorf("%d: got error %v", code, err)
		}
	}
}

// TestMCPRedirect: a redirect on the same server is followed, as FastMCP sends it from /mcp to /mcp/.
func TestMCPRedirect(t *testing.T) {
	cfg := httpMCPResults(t, "application/json")
	target, err := url.Parse(cfg.URL)
	if err != nil {
		t.Fatal(err)
	}
	server := httputil.NewSingleHostReverseProxy(target)
	cfg.URL = listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/mcp/" {
			http.Redirect(w, r, "/mcp/", http.StatusTemporaryRedirect)
			return
		}
		r.URL.Path = "/"
		server.ServeHTTP(w, r)
	})) + "/mcp"
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got, err := m.Tools()[0].Call(t.Context(), []byte("{}")); err != nil || got != "a < b & é 😀" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestMCPStart checks that the error contains the reason why a server does not start.
func TestMCPStart(t *testing.T) {
	t.Setenv("MGRPO_TEST_KEY", "sk-9-of-ours")
	script := "echo 'no such table, key '$MGRPO_TEST_KEY >&2; exit 1"
	_, err := Connect(t.Context(), Options{Command: []string{"sh", "-c", script}, Env: []string{"MGRPO_TEST_KEY"}})
	if err == nil || !strings.Contains(err.Error(), "stderr:\nno such table, key [redacted]") {
		t.Errorf("got %v", err)
	}
}

// TestMCPBeginsWithInitialize: the first request is initialize, because servers of earlier versions of the protocol accept no other.
func TestMCPBeginsWithInitialize(t *testing.T) {
	var mu sync.Mutex
	var methods []string
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return testMCPServer() }, nil)
	url := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var call struct{ Method string }
		if json.Unmarshal(body, &call) == nil {
			mu.Lock()
			methods = append(methods, call.Method)
			mu.Unlock()
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		inner.ServeHTTP(w, r)
	}))
	m, err := Connect(t.Context(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if len(methods) < 3 || !slices.Equal(methods[:3], []string{"initialize", "notifications/initialized", "tools/list"}) {
		t.Errorf("the server got requests %q", methods)
	}
}
