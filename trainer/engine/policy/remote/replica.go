package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// replica is one server. Its gate admits any number of turns at once, or one change of its weights.
type replica struct {
	url  string
	key  string
	api  protocol
	gate *semaphore.Weighted

	turns, control *http.Client // control: for all requests except turns
	known          connections

	weights *weightsCopy // guarded by the gate
	stamps  []string     // stamps of the weights that it has, or may have after a failed load; guarded by the gate
	lost    atomic.Bool
}

const gateCapacity = 1 << 30

// protocol is the protocol of one kind of server.
type protocol interface {
	// inspect identifies the server. It returns an error if the server lacks a required feature.
	inspect(ctx context.Context) (serverInfo, error)
	// load makes the server, which has no turn in flight, load the weights of a folder under a stamp and drop its
	// cache.
	load(ctx context.Context, folder, stamp string) error
	// request returns the path and the body of a request for tokens.
	request(q prompt) (path string, body any)
	// decode reads the reply, which is untrusted.
	decode(body []byte) (answer, error)
	// stamp returns the stamp that the server reports, if replies do not carry it.
	stamp(ctx context.Context) (string, error)
}

// serverInfo is a server's description of itself.
type serverInfo struct {
	name    string // "vLLM 0.25.1"
	routes  string // the routes through which it is used
	context int    // tokens that a sequence may reach
}

func (i serverInfo) describe(r *replica) string {
	return fmt.Sprintf("%s at %s: %s", i.name, r.url, i.routes)
}

// prompt is a request for at most `most` tokens.
type prompt struct {
	tokens   []int32
	sampling policy.Sampling
	most     int
	seed     int64
}

// answer is a server's reply. logProbs has one entry per token.
type answer struct {
	ids      []int32
	logProbs []float64
	stamp    string // stamp of the weights; "": not in the reply
}

// lostError reports a server that does not answer, or has lost its weights. A request can continue after sending them
// again.
type lostError struct {
	error
	turn bool // it was lost during a turn
}

func (l *lostError) Unwrap() error { return l.error }

// statusError is a reply with an error status.
type statusError struct {
	code int
	text string
}

func (s *statusError) Error() string { return fmt.Sprintf("status %d: %s", s.code, s.text) }

func newReplica(address string, opt Options) *replica {
	client := func(idle int) *http.Client {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost, t.MaxIdleConns = idle, 0
		t.Proxy = nil                       // a proxy keeps its connection even if the server behind it is replaced
		t.IdleConnTimeout = 3 * time.Second // less than the servers' own limit, after which they might close it just as a turn begins
		// A redirect could send the key to another host.
		return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	r := &replica{url: strings.TrimRight(address, "/"), key: opt.Key, gate: semaphore.NewWeighted(gateCapacity),
		turns: client(max(opt.InFlight, 1)), control: client(1)}
	r.lost.Store(true) // until it has passed the checks with its first weights
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

// turn samples a turn. A server may stop earlier than the turn's own rules require, at an end of text
// that is not one of the turn's stop ids, or at a limit of its own. turn then requests more tokens.
func (r *replica) turn(ctx context.Context, p *Policy, req policy.Request) (out policy.Completion, err error) {
	if err := r.gate.Acquire(ctx, 1); err != nil {
		return out, r.interrupted(ctx, errors.New("it is loading weights"))
	}
	defer r.gate.Release(1)
	if r.weights == nil || r.lost.Load() {
		return out, &lostError{error: errors.New("it has not proved its weights")}
	}
	out.Version = r.weights.version
	ending := policy.NewEnding(req.Sampling, len(req.Tokens), p.context, p.opt.TokenBytes)
	tokens := slices.Clone(req.Tokens)
	for {
		a, err := r.ask(ctx, p, r.weights, prompt{tokens, req.Sampling, ending.Room(), seedOf(req.Key, len(tokens))})
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
				return out, nil // tokens beyond the end are not part of the turn
			}
		}
	}
}

// ask sends one request for tokens and checks the reply: its form, every token, every log-prob, and that the process
// that sampled it has the weights w.
func (r *replica) ask(ctx context.Context, p *Policy, w *weightsCopy, q prompt) (answer, error) {
	path, body := r.api.request(q)
	var conn net.Conn
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { conn = c.Conn }})
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
		return answer{}, fmt.Errorf("unusable reply: %w: %s", err, r.quote(string(raw)))
	}
	if a.stamp != "" {
		return a, sameWeights(a.stamp, w.stamp)
	}
	if r.known.has(conn, w.stamp) {
		return a, nil
	}
	stamp, err := r.api.stamp(ctx)
	if err == nil {
		err = sameWeights(stamp, w.stamp)
	}
	if err == nil {
		r.known.add(conn, w.stamp)
	}
	return a, err
}

// connections are the connections to a process with the weights of a stamp. A connection ends with its process, so
// every reply over a known connection was sampled with these weights.
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

// add also forgets all connections at intervals, since most are closed after being idle for a while.
func (c *connections) add(conn net.Conn, stamp string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const maxConns = 1 << 10
	if c.stamp != stamp || len(c.all) == maxConns {
		c.stamp, c.all = stamp, map[net.Conn]bool{}
	}
	c.all[conn] = true
}

// sameWeights compares the stamp that a server reports with the stamp of the weights that it loaded last.
func sameWeights(reports, stamp string) error {
	switch {
	case reports == stamp:
		return nil
	case strings.HasPrefix(reports, stampPrefix):
		return fmt.Errorf("it has the weights %s, but this run gave it %s: another trainer uses the same server", quote(reports), stamp)
	}
	return &lostError{error: errors.New("it was restarted and has lost the weights")}
}

// checkOwner returns an error if another trainer has given the server weights since this run did: turns may have been
// sampled with those.
func (r *replica) checkOwner(ctx context.Context) error {
	if len(r.stamps) == 0 {
		return nil
	}
	stamp, err := r.api.stamp(ctx)
	if err != nil || slices.Contains(r.stamps, stamp) || !strings.HasPrefix(stamp, stampPrefix) {
		return err
	}
	return sameWeights(stamp, r.stamps[len(r.stamps)-1])
}

// check refuses replies that no server should send.
func (a *answer) check(p *Policy, q prompt) error {
	switch {
	case len(a.ids) == 0:
		return errors.New("no token was sampled")
	case len(a.ids) > q.most:
		return fmt.Errorf("%d tokens, but %d were requested", len(a.ids), q.most)
	case len(a.ids) != len(a.logProbs):
		return fmt.Errorf("%d tokens and %d log-probs", len(a.ids), len(a.logProbs))
	}
	for i, lp := range a.logProbs {
		if lp > 0 && lp <= rounding {
			a.logProbs[i], lp = 0, 0
		}
		if math.IsNaN(lp) || lp > 0 || lp <= minusInfinity {
			return fmt.Errorf("the log-prob of token %d is %v, but must be a finite number, at most 0", i, lp)
		}
	}
	for i, id := range a.ids {
		if id < 0 || int(id) >= p.opt.Vocabulary {
			return fmt.Errorf("policy: token %d of the reply is %d, outside the vocabulary of %d", i, id, p.opt.Vocabulary)
		}
	}
	return nil
}

// rounding is the largest log-prob above 0 that counts as 0: the logarithm of a probability that was rounded to a little more than 1.
const rounding = 1e-5

// minusInfinity is the value that vLLM sends for minus infinity, which JSON cannot represent.
const minusInfinity = -9999

// call sends a request and returns the body of a reply of status 200, of at most `most` bytes.
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
	resp, raw, err := retry.Attempt(ctx, client, req, most)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = retry.Refusal(resp, &statusError{resp.StatusCode, r.quote(string(raw))})
	}
	if err == nil {
		return raw, nil
	}
	err = fmt.Errorf("%s: %w", path, err)
	if resp != nil && resp.StatusCode == http.StatusUnauthorized {
		err = fmt.Errorf("%w: engine.key_env names the environment variable with the server's API key", err)
	}
	var again *retry.Transient
	if errors.As(err, &again) {
		return nil, &lostError{error: err}
	}
	return nil, err
}

// ctl sends a request other than a turn and reads its reply into out, which may be nil.
func (r *replica) ctl(ctx context.Context, method, path string, body, out any) error {
	const maxReply = 8 << 20
	raw, err := r.call(ctx, r.control, method, path, body, maxReply)
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

func quote(s string) string { return strconv.Quote(texts.Excerpt(s, 300)) }
