package localhost

import (
	"net/http/httptest"
	"testing"
)

func TestForeign(t *testing.T) {
	for _, c := range []struct {
		host, origin, site string
		want               bool
	}{
		{"localhost:8000", "", "", false},
		{"127.0.0.1:8000", "", "none", false},
		{"[::1]:8000", "http://[::1]:8000", "same-origin", false},
		{"10.0.0.3:8000", "http://10.0.0.3:8000", "", false},
		{"127.0.0.1:8000", "http://localhost:3000", "same-site", false}, // a page of this machine
		{"", "", "", false},                                             // HTTP/1.0
		{"trainer:8000", "", "", false},
		{"host.docker.internal:8000", "", "", false},
		{"app.localhost", "vscode-webview://1a2b", "", false},
		{"localhost.evil.example", "", "", true},
		{"evil.example:8000", "", "", true}, // DNS rebinding
		{"127.0.0.1:8000", "https://evil.example", "", true},
		{"127.0.0.1:8000", "null", "", true}, // a sandboxed frame
		{"127.0.0.1:8000", "http://10.0.0.9", "", true},
		{"127.0.0.1:8000", "", "cross-site", true},
	} {
		r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
		r.Host = c.host
		for name, value := range map[string]string{"Origin": c.origin, "Sec-Fetch-Site": c.site} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		if got := Foreign(r); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
