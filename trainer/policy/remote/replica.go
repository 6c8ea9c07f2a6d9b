package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mgrpo/mgrpo/trainer/policy"
)

// replica is one server. Any number of turns pass its gate at once, or one change of its weights.
type replica struct {
	url  string
	key  string
	api  protocol
	gate *semaphore.Weighted

	turns, control *http.Client // control: for all requests but those for tokens
	known          connections

	holds *held    // guarded by the gate
	given []string // stamps of the weights that it has, or may have since a load that failed; guarded by the gate
	lost  atomic.Bool
}

const wholeGate = 1 << 30

// protocol is how a kind of server is spoken to.
type protocol interface {
	// inspect says what the server is. It refuses one that lacks what is needed.
	inspect(ctx context.Context) (facts, error)
	// load has the server, in which no turn is in flight, take the weights of a folder under a stamp and drop what it has
	// cached.
	load(ctx context.Context, folder, stamp string) error
	// request is the path and the body that ask for tokens.
	request(q prompt) (path string, body any)
	// decode reads the reply to it, which somebody else wrote.
	decode(body []byte) (answer, error)
	// stamp is the stamp that the server reports, where replies do not carry it.
	stamp(ctx context.Context) (string, error)
}

// facts are what a server says about itself.
type facts struct {
	name    string // "vLLM 0.25.1"
	way     string // how it is used
	context int    // tokens that a sequence may reach
}

func (is facts) at(r *replica) string { return fmt.Sprintf("%s at %s: %s", is.name, r.url, is.way) }

// prompt asks for at most `most` tokens.
type prompt struct {
	tokens   []int32
	sampling policy.Sampling
	most     int
	seed     int64
}

// answer is what a server sampled. logProbs has one entry a token.
type answer struct {
	ids      []int32
	logProbs []float64
	stamp    string // of the weights; "": the reply does not say
}

// lostError is a server that does not answer, or has lost its weights. Whoever gives it its weights again can go on.
type lostError struct {
	error
	turn bool // it was lost over a turn that it had been asked for
}

func (l *lostError) Unwrap() error { return l.error }

// statusError is a reply that is no success.
type statusError struct {
	code int
	text string
}

func (s *statusError) Error() string { return fmt.Sprintf("status %d: %s", s.code, s.text) }

func newReplica(address string, opt Options) *replica {
	client := func(idle int) *http.Client {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost, t.MaxIdleConns = idle, 0
		t.Proxy = nil                       // a proxy keeps its connection when the server behind it is another
		t.IdleConnTimeout = 3 * time.Second // less than the servers' own, who would close it just as a turn begins
		// A redirect could carry the key to another host.
		return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	r := &replica{url: strings.TrimRight(address, "/"), key: opt.Key, gate: semaphore.NewWeighted(wholeGate), turns: client(max(opt.InFlight, 1)), control: client(1)}
	r.lost.Store(true) // until it has proved its first weights
	if opt.Kind == SGLang {
		r.api = &sglang{r: r}
	} else {
		r.api = &vllm{r: r}
	}
	return r
}

func (r *replica) close() {
	r.turns.CloseIdleConnections()
	r.control.CloseIdleConnections()
}

// turn samples a turn. A server may stop earlier than the turn's own rules say, at an end of text that is none of its stop
// ids or at a limit of its own: it is then asked to go on.
func (r *replica) turn(ctx context.Context, p *Policy, req policy.Request) (out policy.Completion, err error) {
	if err := r.gate.Acquire(ctx, 1); err != nil {
		return out, r.interrupted(ctx, errors.New("it is being given its weights"))
	}
	defer r.gate.Release(1)
	if r.holds == nil || r.lost.Load() {
		return out, &lostError{error: errors.New("it has not proved its weights")}
	}
	out.Version = r.holds.version
	ending := policy.NewEnding(req.Sampling, len(req.Tokens), p.context, p.opt.TokenBytes)
	tokens := slices.Clone(req.Tokens)
	for {
		a, err := r.ask(ctx, p, r.holds, prompt{tokens, req.Sampling, ending.Room(), seedOf(req.Key, len(tokens))})
		var lost *lostError
		if errors.As(err, &lost) {
			lost.turn = true
			r.lost.Store(true)
		}
		if err != nil {
			return policy.Completion{}, fmt.Errorf("the engine at %s: %w", r.url, err)
		}
		for i, id := range a.ids {
			tokens = append(tokens, id)
			out.Tokens = append(out.Tokens, id)
			out.LogProbs = append(out.LogProbs, float32(a.logProbs[i]))
			if why, ended := ending.Add(id); ended {
				out.Finish = why
				return out, nil // what a server sampled beyond the end is no part of the turn
			}
		}
	}
}

// ask sends one request for tokens and checks the reply: its form, every token, every log-prob, and that the weights of
// the process that sampled it are those of h.
func (r *replica) ask(ctx context.Context, p *Policy, h *held, q prompt) (answer, error) {
	path, body := r.api.request(q)
	var over net.Conn
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { over = c.Conn }})
	const perToken, around = 4 << 10, 1 << 20 // bytes
	raw, err := r.call(traced, r.turns, http.MethodPost, path, body, around+int64(q.most)*perToken)
	if err != nil {
		return answer{}, err
	}
	a, err := r.api.decode(raw)
	if err == nil {
		err = a.check(p, q)
	}
	if err != nil {
		return answer{}, fmt.Errorf("a reply that cannot be used: %w", err)
	}
	if a.stamp != "" {
		return a, sameWeights(a.stamp, h.stamp)
	}
	if r.known.has(over, h.stamp) {
		return a, nil
	}
	stamp, err := r.api.stamp(ctx)
	if err == nil {
		err = sameWeights(stamp, h.stamp)
	}
	if err == nil {
		r.known.add(over, h.stamp)
	}
	return a, err
}

// connections are those to a process that holds the weights of a stamp. A connection ends with its process, so whatever
// comes over one that is known was sampled with these weights.
type connections struct {
	mu    sync.Mutex
	stamp string
	all   map[net.Conn]bool
}

func (c *connections) has(conn net.Conn, stamp string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stamp == stamp && c.all[conn]
}

// add also forgets all connections now and then, since most are closed when they have been idle for a while.
func (c *connections) add(conn net.Conn, stamp string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const most = 1 << 10
	if c.stamp != stamp || len(c.all) == most {
		c.stamp, c.all = stamp, map[net.Conn]bool{}
	}
	c.all[conn] = true
}

// sameWeights compares the stamp that a server reports with that of the weights it was given.
func sameWeights(reports, given string) error {
	switch {
	case reports == given:
		return nil
	case strings.HasPrefix(reports, stampPrefix):
		return fmt.Errorf("it holds the weights %s, and this run gave it %s: another trainer uses the same server", quote(reports), given)
	}
	return &lostError{error: errors.New("it was started again and has lost the weights")}
}

// ours says whether the server holds what it was given last. Where somebody else has given it weights since, turns may have been sampled
// by them.
func (r *replica) ours(ctx context.Context) error {
	if len(r.given) == 0 {
		return nil
	}
	stamp, err := r.api.stamp(ctx)
	if err != nil || slices.Contains(r.given, stamp) || !strings.HasPrefix(stamp, stampPrefix) {
		return err
	}
	return sameWeights(stamp, r.given[len(r.given)-1])
}

// check refuses what no server should send.
func (a *answer) check(p *Policy, q prompt) error {
	switch {
	case len(a.ids) == 0:
		return errors.New("no token was sampled")
	case len(a.ids) > q.most:
		return fmt.Errorf("%d tokens, more than the %d asked for", len(a.ids), q.most)
	case len(a.ids) != len(a.logProbs):
		return fmt.Errorf("%d tokens and %d log-probs", len(a.ids), len(a.logProbs))
	}
	for i, lp := range a.logProbs {
		if math.IsNaN(lp) || lp > 0 || lp <= minusInfinity {
			return fmt.Errorf("the log-prob of token %d is %v: want a finite number, at most 0", i, lp)
		}
	}
	for i, id := range a.ids {
		if id < 0 || int(id) >= p.opt.Vocabulary {
			return fmt.Errorf("policy: token %d of the reply is %d, outside the vocabulary of %d", i, id, p.opt.Vocabulary)
		}
	}
	return nil
}

// minusInfinity is what vLLM sends for it, JSON having none.
const minusInfinity = -9999

// call sends a request and returns the body of a reply of status 200, of at most so many bytes.
func (r *replica) call(ctx context.Context, client *http.Client, method, path string, body any, most int64) ([]byte, error) {
	var sent io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, sent)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, r.broken(ctx, path, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return nil, r.broken(ctx, path, err)
	case int64(len(raw)) > most:
		return nil, fmt.Errorf("%s: the reply exceeds %d bytes", path, most)
	case resp.StatusCode == http.StatusOK:
		return raw, nil
	}
	err = fmt.Errorf("%s: %w", path, &statusError{resp.StatusCode, r.quote(string(raw))})
	if code := resp.StatusCode; code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout {
		return nil, &lostError{error: err}
	}
	return nil, err
}

// broken is the error of a request without a complete reply.
func (r *replica) broken(ctx context.Context, path string, err error) error {
	var untrusted *tls.CertificateVerificationError
	var shown *url.Error
	if errors.As(err, &shown) {
		err = shown.Err // without the address, which whoever reports it adds
	}
	err = fmt.Errorf("%s: %w", path, err)
	if ctx.Err() != nil || errors.As(err, &untrusted) {
		return err
	}
	return &lostError{error: err}
}

// ctl sends a request that is no turn and reads its reply into out, which may be nil.
func (r *replica) ctl(ctx context.Context, method, path string, body, out any) error {
	const most = 8 << 20
	raw, err := r.call(ctx, r.control, method, path, body, most)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s: %w in %s", path, err, r.quote(string(raw)))
	}
	return nil
}

// quote shortens and quotes a server's text for an error, without the key.
func (r *replica) quote(s string) string {
	if r.key != "" {
		s = strings.ReplaceAll(s, r.key, "[key]")
	}
	return quote(s)
}

func quote(s string) string {
	const most = 300
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}
