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
	server := httptest.NewServer(mux)
	defer server.Close()
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
	if err := c.Serve(ctx, mux, engine, ServeOptions{Name: "tiny", Ready: func(contextTokens int) {
		defer stop()
		if got := models(); contextTokens != engine.ContextLimit() || !strings.Contains(got, `"tiny"`) {
			t.Errorf("a context of %d tokens, models %s", contextTokens, got)
		}
		resp, err := http.Post(server.URL+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "w7 w8"}]}`))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("a request: %v, %v", resp, err)
			return
		}
		resp.Body.Close()
	}}); err != nil {
		t.Fatal(err)
	}
	if got := models(); strings.Contains(got, `"tiny"`) {
		t.Errorf("after the end: models %s", got)
	}
	if err := openTiny(t, false).Serve(t.Context(), mux, engine, ServeOptions{Name: "tiny"}); err == nil || !strings.Contains(err.Error(), "tokenizer") {
		t.Errorf("without a tokenizer: %v", err)
	}
}
