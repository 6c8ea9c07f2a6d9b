package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestUpstream: a hosted model receives its own name and key. The client's key and cookies are
// not sent to it, also if it does not have a key.
func TestUpstream(t *testing.T) {
	var got *http.Request
	var body string
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got, body = r, string(text)
	}))
	defer api.Close()
	base, err := url.Parse(api.URL + "/proxied/v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "its own"} {
		r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
		r.Header.Set("Authorization", "Bearer the client's")
		r.Header.Set("Cookie", "session=1")
		if err := (Upstream{URL: base, Model: "big", Key: key}).serve(clientRequest{w: httptest.NewRecorder(), r: r, body: []byte(`{"model": "solver", "n": 1}`)}); err != nil {
			t.Fatal(err)
		}
		if sent := got.Header.Get("Authorization"); sent != strings.TrimSuffix("Bearer "+key, "Bearer ") || got.Header.Get("Cookie") != "" {
			t.Errorf("configured key %q: the hosted model got key %q and cookies %q", key, sent, got.Header.Get("Cookie"))
		}
		if got.URL.Path != "/proxied/v1/chat/completions" || body != `{"model":"big","n":1}` || got.ContentLength != int64(len(body)) {
			t.Errorf("the hosted model got %s at %s", body, got.URL.Path)
		}
	}
}
