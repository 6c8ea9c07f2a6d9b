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
