package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

// website serves pages at an address of this machine, and returns its HOST:PORT.
func website(t *testing.T, address string, pages http.HandlerFunc) string {
	t.Helper()
	at, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: at, Config: &http.Server{Handler: pages}}
	s.Start()
	t.Cleanup(s.Close)
	return at.Addr().String()
}

// visitor returns a tool that may visit the given hosts of this machine. Of their addresses only 127.0.0.1 is allowed.
func visitor(t *testing.T, hosts ...string) *Visit {
	t.Helper()
	return closed(t, NewVisit(VisitOptions{Hosts: hosts, Schemes: []string{"http"}, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Bytes: 1 << 16, Agent: "reader (https://example.org)", Links: true}))
}

func closed(t *testing.T, v *Visit) *Visit {
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func page(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestVisit(t *testing.T) {
	for name, c := range map[string]struct {
		status     int
		kind, body string
		want       string
	}{
		"a page":                {200, "text/html; charset=utf-8", "<title>Ada</title><nav>menu</nav><p>wrote <b>programs</b>", "Ada\n\nwrote programs"},
		"another encoding":      {200, "text/html; charset=iso-8859-1", "<p>caf\xe9", "café"},
		"an encoding twice":     {200, "text/html; charset=Shift_JIS; charset=Shift_JIS", "<p>\x93\x8c\x8b\x9e", "東京"},
		"two headers in one":    {200, "text/html, text/html;charset=utf-8", "<p>é", "é"},
		"no value":              {200, "Text/HTML; charset=", "<p>é", "é"},
		"late, without a word":  {200, "application/json", `"` + strings.Repeat("x", 1100) + `é"`, `"` + strings.Repeat("x", 1100) + `é"`},
		"not UTF-8":             {200, "text/plain", "caf\xe9", "café"},
		"empty":                 {200, "text/html", "", "(the page has no text)"},
		"a byte order mark":     {200, "text/plain; charset=utf-8", "\ufeffx", "x"},
		"escapes in a tag":      {200, "text/html", `<meta charset="iso-2022-jp"><p>` + "\x1b$BEl5~\x1b(B", "東京"},
		"an encoding in a tag":  {200, "text/html", `<meta charset="windows-1252"><p>` + "\x80 5", "€ 5"},
		"no semicolon":          {200, "text/html charset=shift_jis", "<p>\x93\x8c\x8b\x9e", "東京"},
		"a parameter alone":     {200, "Text/HTML; charset", "<p>café", "café"},
		"text":                  {200, "text/plain", " as it is \n", "as it is"},
		"JSON":                  {200, "application/ld+json", `{"a": 1}`, `{"a": 1}`},
		"nothing":               {200, "text/html", "<script>alert(1)</script>", "(the page has no text)"},
		"a picture":             {200, "image/png", "\x89PNG", `error: http://HOST/a is not text but "image/png"`},
		"a page that is absent": {404, "text/html", "<p>where?", "error: http://HOST/a: HTTP 404 Not Found"},
		"too much":              {200, "text/plain", strings.Repeat("a", 1<<16+1), "error: http://HOST/a: the page has more than 65536 bytes"},
	} {
		at := website(t, "127.0.0.1:0", page(c.status, c.kind, c.body))
		want := strings.ReplaceAll(c.want, "HOST", at)
		if got := tooltest.CallText(t, visitor(t, at), "url", "http://"+at+"/a"); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestVisitAddresses: an address that is not well-formed, but that browsers accept, arrives as theirs do.
func TestVisitAddresses(t *testing.T) {
	at := website(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" {
			http.NotFound(w, r)
			return
		}
		if r.URL.Path == "/to" {
			w.Header().Set("Location", "/a?q=b c")
			w.WriteHeader(http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, r.RequestURI)
	})
	v := visitor(t, at)
	for path, want := range map[string]string{
		"/100%_a":      "/100%25_a",
		"/100%":        "/100%25",
		"/%%%41%4":     "/%25%25%41%254",
		"/a b?q=c d":   "/a%20b?q=c%20d",
		"/?q=é&p=100%": "/?q=%C3%A9&p=100%",
		"/a?q=b#100%":  "/a?q=b",
		"/a#100%?":     "/a",
		"/to":          "/a?q=b%20c",
	} {
		if got := tooltest.CallText(t, v, "url", "http://"+at+path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// TestVisitCompressed: a page that is compressed in a way that no request accepts is an error instead of its bytes.
func TestVisitCompressed(t *testing.T) {
	for _, robots := range []bool{false, true} {
		at := website(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
			if robots == (r.URL.Path == "/robots.txt") {
				w.Header().Set("Content-Encoding", "br")
			}
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "\x8b\x02\x80")
		})
		if got := tooltest.CallText(t, visitor(t, at), "url", "http://"+at); !strings.Contains(got, "Content-Encoding br") {
			t.Errorf("got %q", got)
		}
	}
}

// TestVisitRefuses: addresses of pages that may not be visited are refused without a connection.
func TestVisitRefuses(t *testing.T) {
	v := visitor(t, "a.org", "*.b.org", "c.org:8080", "[::1]:99", "[::2]", "D.org:80")
	for address, want := range map[string]string{
		"http://a.org/x":             "",
		"http://A.org.:80/x":         "",
		"http://www.b.org":           "",
		"http://c.org:8080/":         "",
		"http://[::1]:99/":           "",
		"http://[::2]/":              "",
		"http://[::2]:80/":           "",
		"http://d.org":               "",
		"http://[::1]/":              "not on the list",
		"http://[::2]:99/":           "not on the list",
		"http://b.org":               "not on the list",
		"http://evilb.org":           "not on the list",
		"http://a.org.evil.com":      "not on the list",
		"http://a.org:8080":          "not on the list",
		"http://c.org":               "not on the list",
		"http://127.0.0.1":           "not on the list",
		"https://a.org":              "scheme",
		"file:///etc/passwd":         "not the address of a page",
		"a.org/x":                    "not the address of a page",
		"http:a.org":                 "not the address of a page",
		"http://me:secret@a.org":     "user name",
		"http://a_b!.org":            "not the name of a host",
		"http://a.org/" + long(2048): "more than",
	} {
		err := v.Check(tooltest.Arg(t, "url", address))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%.40s: got error %v, want %q", address, err, want)
		}
	}
}

func long(n int) string { return strings.Repeat("x", n) }

// TestVisitRedirects: a redirect is followed only to pages that may be visited.
func TestVisitRedirects(t *testing.T) {
	var asked, visits atomic.Int32
	private := website(t, "127.0.0.2:0", func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		io.WriteString(w, "secrets")
	})
	at := website(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/robots.txt":
			if visits.Add(1) > 1 { // the first request reads the rules, and a second one would visit the page
				http.Redirect(w, r, "/closed/x", http.StatusFound)
			}
			io.WriteString(w, "User-agent: *\nDisallow: /closed")
		case r.URL.Path == "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case r.URL.Query().Get("to") != "":
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
		default:
			fmt.Fprintf(w, "read as %s", r.UserAgent())
		}
	})
	v := visitor(t, at, private)
	for to, want := range map[string]string{
		"/b":                            "read as reader (https://example.org)",
		"http://" + at + "/b":           "read as reader (https://example.org)",
		"http://" + private + "/":       "127.0.0.2 is not a public address",
		"http://10.0.0.1/":              "not on the list",
		"file:///etc/passwd":            "scheme",
		"/closed/x":                     "robots.txt forbids it",
		"/open/../closed/x":             "robots.txt forbids it",
		"/open/%2e%2E/closed/x":         "robots.txt forbids it",
		"/open/a.b..c/%2e":              "read as reader (https://example.org)",
		"http://" + at + "/loop":        "more than 5 redirects",
		"http://" + at + "/?to=/b":      "read as reader (https://example.org)",
		"//" + private + "/elsewhere":   "127.0.0.2 is not a public address",
		"http://me:secret@" + at + "/b": "with a user name cannot be visited",
		"/" + strings.Repeat("b", 2048): "more than 2048 bytes",
	} {
		if got := tooltest.CallText(t, v, "url", "http://"+at+"/?to="+url.QueryEscape(to)); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", to, got, want)
		}
	}
	if got := tooltest.CallText(t, v, "url", "http://"+at+"/open/%2e./closed/x"); !strings.Contains(got, "robots.txt forbids it") {
		t.Errorf("another spelling of a forbidden page: got %q", got)
	}
	if got := tooltest.CallText(t, v, "url", "http://"+at+"/robots.txt"); !strings.Contains(got, "robots.txt forbids it") {
		t.Errorf("robots.txt as a page, which redirects: got %q", got)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the private server got %d requests, want 0", n)
	}
}

// TestVisitRebinding: the address to which the connection is made must be allowed. It may
// differ from the address that the name had when it was checked.
func TestVisitRebinding(t *testing.T) {
	home := website(t, "127.0.0.1:0", page(200, "text/plain", "public"))
	_, port, _ := net.SplitHostPort(home)
	var asked atomic.Int32
	website(t, "127.0.0.2:"+port, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	var now atomic.Value
	now.Store([4]byte{127, 0, 0, 1})
	v := closed(t, newVisit(VisitOptions{Hosts: []string{"rebind.test:" + port}, Schemes: []string{"http"}, Bytes: 1000, Agent: "reader",
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}, nameServer(t, &now)))
	v.client.Transport.(*http.Transport).DisableKeepAlives = true
	address := "http://rebind.test:" + port + "/a"
	if got := tooltest.CallText(t, v, "url", address); got != "public" {
		t.Fatalf("%q", got)
	}
	now.Store([4]byte{127, 0, 0, 2})
	if got, want := tooltest.CallText(t, v, "url", address), "error: "+address+": 127.0.0.2 is not a public address, and it is not in an allowed network"; got != want || asked.Load() > 0 {
		t.Errorf("got %q after %d requests, want %q after 0", got, asked.Load(), want)
	}
}

// nameServer returns a resolver that answers questions for IPv4 addresses with the address that is stored at the time.
func nameServer(t *testing.T, address *atomic.Value) *net.Resolver {
	t.Helper()
	at, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { at.Close(); <-ended })
	go func() {
		defer close(ended)
		buffer := make([]byte, 512)
		for {
			n, from, err := at.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(buffer[:n]); err != nil || len(m.Questions) != 1 {
				continue
			}
			m.Header.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body: &dnsmessage.AResource{A: address.Load().([4]byte)}}}
			}
			reply, err := m.Pack()
			if err != nil {
				t.Error(err)
			}
			at.WriteTo(reply, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", at.LocalAddr().String())
	}}
}

func TestPublic(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1::1": true, "1.1.1.1": true,
		"127.0.0.1": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "100.100.1.1": false,
		"0.0.0.0": false, "0.1.2.3": false, "255.255.255.255": false, "224.0.0.1": false, "198.18.0.1": false,
		"::1": false, "::": false, "fe80::1": false, "fd00::1": false, "ff02::1": false, "fec0::1": false, "2002:7f00:1::": false,
		"64:ff9b::7f00:1": false, "::ffff:0:7f00:1": false, "168.63.129.16": false, "::7f00:1": false, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:1.1.1.1": true,
		"fe80::1%eth0": false,
	} {
		at := netip.AddrPortFrom(netip.MustParseAddr(address), 80).String()
		if err := dialControl(nil)("tcp", at, nil); (err == nil) != want {
			t.Errorf("%s: %v", at, err)
		}
	}
	if err := dialControl([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})("tcp", "[::ffff:10.0.0.1]:80", nil); err != nil {
		t.Error(err)
	}
}

// TestVisitRobots: a host is visited if its robots.txt allows it or does not exist. It is not
// visited if the server fails to return the file.
func TestVisitRobots(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		robots string
		want   string
		asked  int32
	}{
		"forbidden":          {200, "User-agent: *\nDisallow: /", "robots.txt forbids it", 1},
		"allowed to us":      {200, "User-agent: *\nDisallow: /\n\nUser-agent: Reader\nAllow: /", "text", 1},
		"absent":             {404, "Disallow: /", "text", 1},
		"not for us to know": {403, "", "text", 1},
		"out of order":       {503, "", "what it forbids is not known", 2},
	} {
		var asked atomic.Int32
		at := website(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/robots.txt" {
				asked.Add(1)
				w.WriteHeader(c.status)
				io.WriteString(w, c.robots)
				return
			}
			io.WriteString(w, "text")
		})
		v := visitor(t, at)
		for range 2 {
			if got := tooltest.CallText(t, v, "url", "http://"+at); !strings.Contains(got, c.want) {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
		}
		if n := asked.Load(); n != c.asked {
			t.Errorf("%s: robots.txt was requested %d times, want %d", name, n, c.asked)
		}
	}
}

// TestVisitRobotsOnce: concurrent visits of a host request its robots.txt once.
func TestVisitRobotsOnce(t *testing.T) {
	var asked atomic.Int32
	at := website(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" {
			asked.Add(1)
			time.Sleep(50 * time.Millisecond)
			return
		}
		io.WriteString(w, "text")
	})
	v := visitor(t, at)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got := tooltest.CallText(t, v, "url", "http://"+at); got != "text" {
				t.Error(got)
			}
		})
	}
	all.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("robots.txt was requested %d times, want 1", n)
	}
}

// TestVisitFailures: temporary failures, permanent failures and time-outs are different errors.
func TestVisitFailures(t *testing.T) {
	busy := website(t, "127.0.0.1:0", page(503, "text/plain", ""))
	silent := website(t, "127.0.0.1:0", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	nobody := website(t, "127.0.0.1:0", nil)
	v := visitor(t, busy, silent, nobody)
	broken := website(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/robots.txt" {
			w.Header().Set("Content-Length", "100")
		}
	})
	v.cfg.Hosts = append(v.cfg.Hosts, broken)
	var transient *retry.Transient
	for _, at := range []string{busy, broken} {
		if _, err := v.Call(t.Context(), tooltest.Arg(t, "url", "http://"+at)); !errors.As(err, &transient) {
			t.Errorf("%s: got error %v, want a temporary one", at, err)
		}
	}
	slow := tool.WithCallPolicy(v, tool.CallPolicy{Timeout: 50 * time.Millisecond})
	if _, err := slow.Call(t.Context(), tooltest.Arg(t, "url", "http://"+silent)); !errors.Is(err, tool.ErrTimeout) {
		t.Errorf("a server that does not answer: got error %v, want ErrTimeout", err)
	}
	if _, err := v.Call(t.Context(), tooltest.Arg(t, "url", "http://"+busy+"0")); err == nil || errors.As(err, &transient) {
		t.Errorf("a host that is not on the list: got error %v, want a permanent one", err)
	}
}
