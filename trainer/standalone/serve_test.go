package standalone

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestServe: the endpoint lists and answers for the model until the context ends, and no longer.
func TestServe(t *testing.T) {
	c := openTiny(t, true)
	engine, err := c.OpenEngine(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	endpoint := NewEndpoint(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	ask := func() *http.Response {
		resp, err := http.Post(server.URL+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "w7 w8"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	if resp := ask(); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("before the model is served: %s, %v", resp.Status, resp.Header)
	}
	models := func() string {
		resp, err := http.Get(server.URL + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if err := c.Serve(ctx, endpoint, engine, ServeOptions{Name: "tiny", Ready: func(contextTokens int) {
		defer stop()
		if got := models(); contextTokens != engine.ContextLimit() || !strings.Contains(got, `"tiny"`) {
			t.Errorf("a context of %d tokens, models %s", contextTokens, got)
		}
		if resp := ask(); resp.StatusCode != http.StatusOK {
			t.Errorf("a request: %s", resp.Status)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	if got := models(); strings.Contains(got, `"tiny"`) {
		t.Errorf("after the end: models %s", got)
	}
	if err := openTiny(t, false).Serve(t.Context(), endpoint, engine, ServeOptions{Name: "tiny"}); err == nil || !strings.Contains(err.Error(), "tokenizer") {
		t.Errorf("without a tokenizer: %v", err)
	}
}
