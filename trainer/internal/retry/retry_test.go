package retry

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAttempt: a reply is bounded, and only a lost connection deserves another attempt.
func TestAttempt(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cut" {
			w.Header().Set("Content-Length", "9")
		}
		if coding, ok := strings.CutPrefix(r.URL.Path, "/coded/"); ok {
			w.Header().Set("Content-Encoding", coding)
		}
		io.WriteString(w, "four")
	})
	plain, untrusted := httptest.NewServer(answer), httptest.NewUnstartedServer(answer)
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.StartTLS()
	defer plain.Close()
	defer untrusted.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx       context.Context
		url, want string
		most      int64
		transient bool
	}{
		"fits":      {t.Context(), plain.URL, "", 4, false},
		"too long":  {t.Context(), plain.URL, "more than 3 bytes", 3, false},
		"cut":       {t.Context(), plain.URL + "/cut", "unexpected EOF", 9, true},
		"brotli":    {t.Context(), plain.URL + "/coded/br", "Content-Encoding br", 4, false},
		"deflate":   {t.Context(), plain.URL + "/coded/identity,Deflate", "Content-Encoding deflate", 4, false},
		"no coding": {t.Context(), plain.URL + "/coded/UTF-8", "", 4, false},
		"refused":   {t.Context(), "http://127.0.0.1:1", "connection refused", 4, true},
		"untrusted": {t.Context(), untrusted.URL, "certificate", 4, false},
		"cancelled": {ended, plain.URL, "canceled", 4, false},
	} {
		r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, body, err := Attempt(c.ctx, http.DefaultClient, r, c.most)
		var again *Transient
		if c.want == "" && (err != nil || string(body) != "four") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) ||
			errors.As(err, &again) != c.transient {
			t.Errorf("%s: got %q, error %v; want %q", name, body, err, c.want)
		}
	}
}

// TestRedirect: the error of a redirect contains the target without its user, query and fragment.
func TestRedirect(t *testing.T) {
	for target, want := range map[string]string{
		"/retrieve/?key=secret":                 `"/retrieve/"`,
		"https://a:secret@example.org/b#secret": `"https://example.org/b"`,
		"https://a:secret%@example.org/":        "another address",
	} {
		reply := &http.Response{StatusCode: http.StatusTemporaryRedirect, Header: http.Header{"Location": {target}}}
		err := Refusal(reply, errors.New("HTTP 307"))
		if want := "HTTP 307: it redirects to " + want + "; redirects are not followed"; err.Error() != want || errors.As(err, new(*Transient)) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestNothingIsNotCompressed: a reply without a body may name a Content-Encoding.
func TestNothingIsNotCompressed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") }))
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, body, err := Attempt(t.Context(), http.DefaultClient, r, 4); err != nil || len(body) > 0 {
		t.Errorf("got %q, error %v", body, err)
	}
}
