// Package web reads web pages as text.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
	"golang.org/x/net/idna"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

const (
	maxAddress   = 2048           // bytes of a URL
	maxRedirects = 5              // redirects of one visit
	robotsAge    = 24 * time.Hour // RFC 9309, section 2.4
	maxSites     = 4096           // hosts whose robots.txt is cached
)

var errLongAddress = fmt.Errorf("the address has more than %d bytes", maxAddress)

// VisitOptions configures which pages Visit may fetch.
type VisitOptions struct {
	Hosts    []string       // names: example.org, *.example.org (all hosts below it), * (all); with :PORT if it is not the scheme's
	Schemes  []string       // http, https
	Networks []netip.Prefix // private, loopback or link-local addresses to which connections are allowed
	Bytes    int64          // length of the longest page; a longer page is an error
	Agent    string         // User-Agent; its part before / is the name used in robots.txt
	Links    bool           // the text contains the addresses of links
}

// Visit fetches a page and returns its readable text.
type Visit struct {
	tool.Tool
	cfg    VisitOptions
	client *http.Client

	mu    sync.Mutex
	sites map[string]*site // by scheme and host
}

// site holds the rules in the robots.txt of a host.
type site struct {
	turn  chan struct{} // has one slot, held by the visitor that reads or fetches the rules; others wait
	rules robots
	until time.Time
}

// NewVisit returns the tool. The caller must call Close.
func NewVisit(cfg VisitOptions) *Visit { return newVisit(cfg, nil) }

// newVisit returns the tool with a resolver of names; nil means the system's resolver.
func newVisit(cfg VisitOptions, names *net.Resolver) *Visit {
	v := &Visit{cfg: cfg, sites: map[string]*site{}}
	v.client = &http.Client{Transport: guardedTransport(cfg.Networks, names), CheckRedirect: v.redirect}
	v.Tool = tool.Func("visit", "Fetches a web page and returns its text.", "url", "The page's address, such as https://example.org/page.", v.visit)
	return v
}

// Close closes the connections that are kept open.
func (v *Visit) Close() error {
	v.client.CloseIdleConnections()
	return nil
}

// Service returns a name for a cache. It contains the settings that affect pages and access to them.
func (v *Visit) Service() string {
	c := v.cfg
	return fmt.Sprintf("visit links=%t %s", c.Links, tool.Fingerprint(fmt.Sprint(c.Hosts), fmt.Sprint(c.Schemes), fmt.Sprint(c.Networks),
		fmt.Sprint(c.Bytes), c.Agent))
}

// Check returns an error unless the arguments of a call name a page that may be fetched. It fetches nothing.
func (v *Visit) Check(args json.RawMessage) error {
	address, err := tool.StringArgument(args, "url")
	if err == nil {
		_, err = v.parse(address)
	}
	return err
}

func (v *Visit) visit(ctx context.Context, address string) (string, error) {
	page, err := v.parse(address)
	if err != nil {
		return "", err
	}
	if err := v.checkRobots(ctx, page); err != nil {
		return "", err
	}
	response, err := v.get(ctx, page)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", retry.Refusal(response, fmt.Errorf("%s: HTTP %s", page, response.Status))
	}
	if err := retry.Encoded(response); err != nil {
		return "", fmt.Errorf("%s: %w", page, err)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, v.cfg.Bytes+1))
	switch {
	case err != nil:
		return "", v.requestError(ctx, page, err)
	case int64(len(body)) > v.cfg.Bytes:
		return "", fmt.Errorf("%s: the page has more than %d bytes", page, v.cfg.Bytes)
	}
	return v.read(response, body)
}

// parse reads the address of a page, or returns the reason why it is not acceptable.
func (v *Visit) parse(address string) (*url.URL, error) {
	if len(address) > maxAddress {
		return nil, errLongAddress
	}
	address, _, _ = strings.Cut(strings.TrimSpace(address), "#") // no request has a fragment
	u, err := url.Parse(withoutStrayPercent(address))
	if err != nil || u.Host == "" || u.Opaque != "" {
		return nil, fmt.Errorf("%q is not the address of a page; want one such as https://example.org/page", tool.Truncate(address, 200))
	}
	return u, v.permit(u)
}

// withoutStrayPercent writes each percent sign before the query that begins no escape as %25. Browsers accept such signs.
func withoutStrayPercent(address string) string {
	path, query, found := strings.Cut(address, "?")
	var b strings.Builder
	for i := range len(path) {
		b.WriteByte(path[i])
		if path[i] == '%' {
			if _, err := strconv.ParseUint(path[i+1:min(i+3, len(path))], 16, 8); err != nil || i+2 >= len(path) {
				b.WriteString("25")
			}
		}
	}
	if found {
		b.WriteString("?" + query)
	}
	return b.String()
}

// escapedQuery escapes the octets that a query must not contain. url.Parse leaves them, and a space would end the address of a request.
func escapedQuery(query string) string {
	var b strings.Builder
	for i := range len(query) {
		if c := query[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// permit returns an error unless the address is allowed. It checks the addresses of calls and of redirects, and rewrites the
// host in the form that name servers use.
func (v *Visit) permit(u *url.URL) error {
	u.RawQuery = escapedQuery(u.RawQuery)
	if len(u.String()) > maxAddress {
		return errLongAddress
	}
	if u.User != nil {
		return errors.New("an address with a user name cannot be visited")
	}
	if !slices.Contains(v.cfg.Schemes, u.Scheme) {
		return fmt.Errorf("the scheme of %s is not allowed; allowed are %s", u.Redacted(), strings.Join(v.cfg.Schemes, ", "))
	}
	name := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if _, err := netip.ParseAddr(name); err != nil {
		if name, err = idna.Lookup.ToASCII(name); err != nil {
			return fmt.Errorf("%q is not the name of a host", u.Hostname())
		}
	}
	withoutDots(u)
	own := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	port := cmp.Or(u.Port(), own)
	if !slices.ContainsFunc(v.cfg.Hosts, func(allowed string) bool { return hostFits(allowed, name, port, own) }) {
		return fmt.Errorf("the host %s is not on the list of those that may be visited: %s", u.Host, tool.Truncate(strings.Join(v.cfg.Hosts, ", "), 500))
	}
	u.Host = name
	if strings.Contains(name, ":") {
		u.Host = "[" + name + "]"
	}
	if port != own {
		u.Host += ":" + port
	}
	return nil
}

// withoutDots resolves . and .. in the path of an absolute address, even if written as %2e. Many servers resolve them,
// and robots.txt must be checked for the page that they return.
func withoutDots(u *url.URL) {
	u.RawPath = strings.NewReplacer("%2e", ".", "%2E", ".").Replace(u.EscapedPath())
	*u = *u.ResolveReference(u)
}

// hostFits reports whether an entry of the list of hosts matches the host with this name and port. An entry without a
// port matches only the scheme's default port.
func hostFits(allowed, name, port, own string) bool {
	only := own
	if host, p, err := net.SplitHostPort(allowed); err == nil {
		allowed, only = host, p
	}
	allowed = strings.ToLower(strings.Trim(allowed, "[]")) // brackets enclose an IPv6 address
	below, wild := strings.CutPrefix(allowed, "*")
	return port == only && (allowed == name || wild && strings.HasSuffix(name, below))
}

// redirect follows a redirect only if a call could name its target.
func (v *Visit) redirect(to *http.Request, from []*http.Request) error {
	if len(from) > maxRedirects {
		return &refusal{fmt.Errorf("more than %d redirects", maxRedirects)}
	}
	if err := v.permit(to.URL); err != nil {
		return &refusal{err}
	}
	to.Header.Del("Referer")
	if to.Context().Value(robotsKey{}) != nil {
		return nil
	}
	if err := v.checkRobots(to.Context(), to.URL); err != nil {
		return &refusal{err}
	}
	return nil
}

// refusal is the reason why a redirect is not followed.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// checkRobots returns an error unless robots.txt allows a page to be fetched.
func (v *Visit) checkRobots(ctx context.Context, page *url.URL) error {
	rules, err := v.robots(ctx, page)
	if err != nil {
		return err
	}
	path := page.EscapedPath()
	if path == "" {
		path = "/"
	}
	if page.RawQuery != "" {
		path += "?" + page.RawQuery
	}
	if path != "/robots.txt" && !rules.allows(path) {
		return fmt.Errorf("%s: the host's robots.txt forbids it", page)
	}
	return nil
}

// robotsKey is the key of a context in which robots.txt is fetched for its rules instead of as the page of a call.
type robotsKey struct{}

// robots returns the rules of a page's host. A host without robots.txt has no rules. If the rules cannot be fetched,
// the host is not visited.
func (v *Visit) robots(ctx context.Context, page *url.URL) (robots, error) {
	at := &url.URL{Scheme: page.Scheme, Host: page.Host, Path: "/robots.txt"}
	host := v.site(at.String())
	select {
	case host.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-host.turn }()
	if time.Now().Before(host.until) {
		return host.rules, nil
	}
	response, err := v.get(context.WithValue(ctx, robotsKey{}, true), at)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var rules robots
	switch code := response.StatusCode; {
	case code == http.StatusTooManyRequests || code < 200 || code >= 300 && code < 400 || code >= 500:
		return nil, retry.Refusal(response, fmt.Errorf("%s: HTTP %s; what it forbids is not known", at, response.Status))
	case code < 300:
		if err := retry.Encoded(response); err != nil {
			return nil, fmt.Errorf("%s: %w; what it forbids is not known", at, err)
		}
		text, err := io.ReadAll(io.LimitReader(response.Body, maxRobots))
		if err != nil {
			return nil, v.requestError(ctx, at, err)
		}
		product, _, _ := strings.Cut(v.cfg.Agent, "/")
		product, _, _ = strings.Cut(product, " ")
		rules = parseRobots(text, product)
	}
	host.rules, host.until = rules, time.Now().Add(robotsAge)
	return rules, nil
}

// site returns the entry of a host.
func (v *Visit) site(name string) *site {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sites[name] == nil {
		if len(v.sites) >= maxSites {
			clear(v.sites)
		}
		v.sites[name] = &site{turn: make(chan struct{}, 1)}
	}
	return v.sites[name]
}

// get sends a request and follows redirects.
func (v *Visit) get(ctx context.Context, page *url.URL) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", v.cfg.Agent)
	request.Header.Set("Accept", "text/html, text/plain;q=0.9, application/json;q=0.8, */*;q=0.1")
	response, err := v.client.Do(request)
	if err != nil {
		return nil, v.requestError(ctx, page, err)
	}
	return response, nil
}

// requestError returns the error of a request without a complete reply. Network failures are transient. A refusal by this
// package, a certificate of another host, and a host name that does not exist are not transient.
func (v *Visit) requestError(ctx context.Context, page *url.URL, err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}
	var refused *addressError
	var unknown *net.DNSError
	var ours *refusal
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %w", page, refused)
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return fmt.Errorf("%s: there is no host of this name", page)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &ours) || errors.As(err, &certificate):
		return fmt.Errorf("%s: %w", page, err)
	}
	return &retry.Transient{Err: tool.Failed(fmt.Errorf("%s: %w", page, err))}
}

var charsetParameter = regexp.MustCompile(`(?i)\bcharset\s*=\s*["']?([^\s"';,]+)`)

// mediaType returns the type in the header Content-Type, and a header with only this type and the first encoding. Like a browser, it reads
// headers with invalid parameters, a parameter that is given twice, or two headers in one.
func mediaType(header string) (kind, declared string) {
	kind = strings.ToLower(strings.TrimSpace(header))
	if i := strings.IndexAny(kind, ";, "); i >= 0 {
		kind = kind[:i]
	}
	if m := charsetParameter.FindStringSubmatch(header); m != nil {
		return kind, kind + "; charset=" + m[1]
	}
	return kind, kind
}

// read returns the text of a page.
func (v *Visit) read(response *http.Response, body []byte) (string, error) {
	page, header := response.Request.URL, response.Header.Get("Content-Type")
	if header == "" {
		header = http.DetectContentType(body)
	}
	kind, declared := mediaType(header)
	isHTML := kind == "text/html" || kind == "application/xhtml+xml"
	isText := strings.HasPrefix(kind, "text/") || kind == "application/json" || kind == "application/xml" || strings.HasSuffix(kind, "+json") ||
		strings.HasSuffix(kind, "+xml")
	if !isHTML && !isText {
		return "", fmt.Errorf("%s is not text but %q", page, tool.Truncate(header, 100))
	}
	const stateful = "iso-2022-jp" // all of its bytes are ASCII
	decoded := body                // a page without a declared encoding is UTF-8 if it is valid UTF-8
	var err error
	if encoding, name, certain := charset.DetermineEncoding(body, declared); certain || name == stateful || !utf8.Valid(body) {
		if decoded, err = encoding.NewDecoder().Bytes(body); err != nil {
			return "", fmt.Errorf("%s: %w", page, err)
		}
	}
	decoded = bytes.TrimPrefix(decoded, []byte("\ufeff"))
	var text string
	if isHTML {
		text, err = readable(bytes.NewReader(decoded), page, v.cfg.Links)
	} else {
		text = strings.TrimSpace(string(decoded))
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", page, err)
	case text == "":
		return "(the page has no text)", nil
	}
	return strings.ToValidUTF8(text, "\uFFFD"), nil
}
