package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var kinds = []Kind{VLLM, SGLang}

// notes collects the notes of a policy.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *notes) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text.WriteString(text + "\n")
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

func options(t *testing.T, kind Kind, said *notes, urls ...string) Options {
	return Options{Kind: kind, URLs: urls, Folder: t.TempDir(), Name: "run.agent", Context: 100, Vocabulary: vocabulary, InFlight: 8,
		Temperature: 1, Tolerance: 0.05, Patience: time.Hour, TokenBytes: func(id int32) []byte { return []byte{byte('a' + id%26)} }, Note: said.add}
}

// open returns a policy that uses a server, after the server has loaded the first weights. It also returns the policy's notes.
func open(t *testing.T, s *server, w *trainer) (*Policy, *notes) {
	t.Helper()
	said := &notes{}
	p, err := New(t.Context(), w, options(t, s.kind, said, s.url()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	if err := p.UpdateWeights(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return p, said
}

func turnOf(rollout int, s policy.Sampling) policy.Request {
	return policy.Request{Tokens: []int32{3, 1, 4}, Sampling: s, Key: policy.Key{RunSeed: 7, Query: "q", Rollout: rollout, Agent: "agent"}}
}

// holdsTo checks that a completion's log-probs equal the trainer's own.
func holdsTo(t *testing.T, r policy.Request, c policy.Completion, w *trainer) {
	t.Helper()
	prefix := slices.Clone(r.Tokens)
	if len(c.Tokens) == 0 || len(c.LogProbs) != len(c.Tokens) {
		t.Fatalf("got %d tokens and %d log-probs, want as many", len(c.Tokens), len(c.LogProbs))
	}
	for i, id := range c.Tokens {
		if want := logProb(logitsOf(w.weights, prefix), id, r.Sampling.Temperature); math.Abs(want-float64(c.LogProbs[i])) > 1e-5 {
			t.Errorf("log-prob of token %d is %v, want %v", i, c.LogProbs[i], want)
		}
		prefix = append(prefix, id)
	}
}

// TestTurns: a turn ends by the rules of its request, its log-probs include the temperature, and its random numbers depend only on its key.
func TestTurns(t *testing.T) {
	for _, kind := range kinds {
		s, w := newServer(t, kind), &trainer{weights: 1}
		p, said := open(t, s, w)
		if limit := p.ContextLimit(); limit != 40 { // the server's context; SGLang reserves a part of its own
			t.Errorf("%s: got context %d, want 40", kind, limit)
		}
		if p.Deterministic() || !strings.Contains(said.String(), "not deterministic") {
			t.Errorf("%s: got notes %s, want one that turns are not deterministic", kind, said)
		}
		seen := map[policy.Finish]bool{}
		for rollout := range 8 {
			for _, sampling := range []policy.Sampling{
				{Temperature: 1, MaxNew: 4},
				{Temperature: 0.7, MaxNew: 30, StopIDs: []int32{5, 9, 11, 12, 13, 14}},
				{Temperature: 1.3, MaxNew: 30, StopStrings: []string{"a", "zb", "c"}},
				{Temperature: 1, MaxNew: 100},
			} {
				r := turnOf(rollout, sampling)
				var streamed []int32
				r.OnToken = func(id int32) { streamed = append(streamed, id) }
				c, err := p.Generate(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				holdsTo(t, r, c, w)
				again, err := p.Generate(t.Context(), r)
				if err != nil || !slices.Equal(again.Tokens, c.Tokens) {
					t.Errorf("%s: the same key gave %v, and %v the second time; error %v", kind, c.Tokens, again.Tokens, err)
				}
				if !slices.Equal(streamed[:len(c.Tokens)], c.Tokens) {
					t.Errorf("%s: OnToken received %v, want %v", kind, streamed, c.Tokens)
				}
				ending := policy.NewEnding(sampling, len(r.Tokens), 40, p.opt.TokenBytes)
				for i, id := range c.Tokens {
					if why, ended := ending.Add(id); ended != (i == len(c.Tokens)-1) || ended && why != c.Finish {
						t.Errorf("%s: after token %d of %d: ended is %v with %s, but the turn has finish %s", kind, i, len(c.Tokens), ended, why, c.Finish)
					}
				}
				seen[c.Finish] = true
			}
		}
		if len(seen) != 3 {
			t.Errorf("%s: got the finishes %v, want 3 kinds", kind, seen)
		}
		a, _ := p.Generate(t.Context(), turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 20}))
		b, _ := p.Generate(t.Context(), turnOf(1, policy.Sampling{Temperature: 1, MaxNew: 20}))
		if slices.Equal(a.Tokens, b.Tokens) {
			t.Errorf("%s: two rollouts have the same tokens", kind)
		}
		if c, err := p.Generate(t.Context(), policy.Request{Tokens: make([]int32, 40), Sampling: policy.Sampling{Temperature: 1, MaxNew: 1}}); err != nil || c.Finish != policy.FinishContext {
			t.Errorf("%s: a full context: got %+v, error %v", kind, c, err)
		}
		if st := p.Stats(); st.Requests != 66 || st.SampledTokens == 0 || st.PromptTokens != 66*3 {
			t.Errorf("%s: got statistics %+v, want 66 requests with prompts of 3 tokens", kind, st)
		}
	}
}

// TestEarlyStops: if a server stops before the turn ends, the policy requests the rest.
func TestEarlyStops(t *testing.T) {
	s, w := newServer(t, SGLang), &trainer{weights: 1}
	p, _ := open(t, s, w)
	s.set(func() {
		s.stops = map[int32]bool{}
		for id := range int32(vocabulary / 2) {
			s.stops[id] = true
		}
	})
	r := turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 20, StopIDs: []int32{63}})
	c, err := p.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	holdsTo(t, r, c, w)
	if len(c.Tokens) != 20 && c.Finish != policy.FinishStop || len(s.asked) < 2 {
		t.Errorf("got %d tokens, finish %s, in %d requests; want a whole turn in 2 or more", len(c.Tokens), c.Finish, len(s.asked))
	}
}

// TestUpdates: a server loads a new version when the turns in flight have ended, and drops its cache. The folder of the old version is then
// deleted.
func TestUpdates(t *testing.T) {
	for _, kind := range kinds {
		s, w := newServer(t, kind), &trainer{weights: 1}
		p, _ := open(t, s, w)
		answering, answer := make(chan struct{}), make(chan struct{})
		s.set(func() {
			s.events = nil
			s.before = sync.OnceFunc(func() { close(answering); <-answer; s.event("answer") })
		})
		r := turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 4})
		old := *w
		var flying sync.WaitGroup
		flying.Go(func() {
			c, err := p.Generate(t.Context(), r)
			if err != nil || c.Version != 0 {
				t.Errorf("%s: the turn in flight has version %d, want 0; error %v", kind, c.Version, err)
			}
			holdsTo(t, r, c, &old)
		})
		<-answering
		first := p.newest.folder
		w.weights = 2
		flying.Go(func() {
			if err := p.UpdateWeights(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
		for p.currentCopy().stamp == first[strings.LastIndexByte(first, '/')+1:] { // until the update waits for the turn in flight
			time.Sleep(time.Millisecond)
		}
		close(answer)
		flying.Wait()
		c, err := p.Generate(t.Context(), r)
		if err != nil || c.Version != 1 || p.Version() != 1 {
			t.Fatalf("%s: after the update: got %+v and version %d, want version 1; error %v", kind, c, p.Version(), err)
		}
		holdsTo(t, r, c, w)
		cleared := map[Kind]string{VLLM: "/reset_prefix_cache", SGLang: "flush_cache"}[kind]
		if i := slices.Index(s.events, "load"); i < slices.Index(s.events, "answer") || !slices.Contains(s.events[max(i, 0):], cleared) {
			t.Errorf("%s: got events %v, want answer, load, %s", kind, s.events, cleared)
		}
		if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: folder %s still exists, or error %v", kind, first, err)
		}
		if entries, _ := os.ReadDir(p.opt.Folder); len(entries) != 1 {
			t.Errorf("%s: got folders %v, want 1", kind, entries)
		}
	}
}

// TestFixedWeights: fixed weights are written and loaded once, and an update only increases their version.
func TestFixedWeights(t *testing.T) {
	s := newServer(t, VLLM)
	p, _ := open(t, s, &trainer{weights: 1, fixed: true})
	s.set(func() { s.events = nil })
	if err := p.UpdateWeights(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	c, err := p.Generate(t.Context(), turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 4}))
	if err != nil || c.Version != 1 || len(s.events) > 0 {
		t.Errorf("got version %d and events %v, want 1 and none; error %v", c.Version, s.events, err)
	}
}

// TestRefusals: a server whose weights or log-probs cannot be verified is refused. The error names the remedy.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		kind         Kind
		broken, want string
	}{
		{VLLM, "no development mode", "VLLM_SERVER_DEV_MODE=1"},
		{VLLM, "no extension", "--worker-extension-cls"},
		{VLLM, "workers apart", "its workers hold different weights"},
		{VLLM, "raw", "--logprobs-mode processed_logprobs"},
		{VLLM, "reports the old version", "was asked to load the weights"},
		{VLLM, "stale", "it does not sample with the agent's weights"},
		{SGLang, "no versions", "cannot prove its weights"},
		{SGLang, "raw", "do not include the temperature"},
		{SGLang, "reports the old version", "does not keep weight_version"},
		{SGLang, "stale", "it does not sample with the agent's weights"},
	} {
		s, said := newServer(t, c.kind), &notes{}
		s.broken = c.broken
		p, err := New(t.Context(), &trainer{weights: 1}, options(t, c.kind, said, s.url()))
		if err == nil {
			err = p.UpdateWeights(t.Context(), 0)
			p.Close(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), s.url()) {
			t.Errorf("%s, %s: got error %v, want %q", c.kind, c.broken, err, c.want)
		}
	}
}

// TestWrongKind: a server of the other kind is refused.
func TestWrongKind(t *testing.T) {
	for _, kind := range kinds {
		other := newServer(t, map[Kind]Kind{VLLM: SGLang, SGLang: VLLM}[kind])
		if _, err := New(t.Context(), &trainer{}, options(t, kind, &notes{}, other.url())); err == nil || !strings.Contains(err.Error(), "404") ||
			!strings.Contains(err.Error(), "without /v1") {
			t.Errorf("%s: got error %v, want a 404 with advice", kind, err)
		}
	}
}

// TestStaleWeights: a server that reports a new version without loading it is detected, also if
// the log-probs of both versions differ by less than the tolerance.
func TestStaleWeights(t *testing.T) {
	for _, kind := range kinds {
		s, w := newServer(t, kind), &trainer{weights: 1}
		p, _ := open(t, s, w)
		s.set(func() { s.broken = "stale" })
		w.weights = 2
		err := p.UpdateWeights(t.Context(), 1)
		if err == nil || !strings.Contains(err.Error(), "it still samples with the previous weights") {
			t.Errorf("%s: got error %v, want that it still samples with the previous weights", kind, err)
		}
	}
}

// TestWeightsOfOthers: an update is refused if another trainer has given weights to the server
// since the last one. Turns may have been sampled with these weights, and the update would hide it.
func TestWeightsOfOthers(t *testing.T) {
	for _, kind := range []Kind{VLLM, SGLang} {
		s, w := newServer(t, kind), &trainer{}
		p, _ := open(t, s, w)
		if err := p.UpdateWeights(t.Context(), 1); err != nil {
			t.Fatal(kind, err)
		}
		s.set(func() { s.stamp = "mgrpo.other.v7" })
		if err := p.UpdateWeights(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "another trainer") {
			t.Errorf("%s: got error %v, want that another trainer uses the server", kind, err)
		}
	}
}

// TestHostileReplies: a reply that does not fit the request is an error.
func TestHostileReplies(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		edit func([]byte) []byte
		want string
	}{
		{"not JSON", VLLM, func([]byte) []byte { return []byte("<html>") }, "invalid character"},
		{"no choice", VLLM, func([]byte) []byte { return []byte(`{"choices": []}`) }, "0 choices"},
		{"an error in a 200", VLLM, func([]byte) []byte { return []byte(`{"error": {"message": "the engine is dead"}}`) }, "the engine is dead"},
		{"an abort in a 200", SGLang, func([]byte) []byte {
			return []byte(`{"output_ids": [], "meta_info": {"weight_version": "v", "finish_reason": {"type": "abort", "message": "out of memory"}}}`)
		}, "out of memory"},
		{"no tokens", VLLM, func([]byte) []byte { return []byte(`{"choices": [{"token_ids": [], "logprobs": {"content": []}}]}`) }, "no token was sampled"},
		{"no log-probs", VLLM, func([]byte) []byte { return []byte(`{"choices": [{"token_ids": [1]}]}`) }, "no log-probs"},
		{"null", VLLM, func([]byte) []byte {
			return []byte(`{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": null}]}}]}`)
		}, "does not have a log-prob"},
		{"too few", VLLM, func([]byte) []byte {
			return []byte(`{"choices": [{"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1}]}}]}`)
		}, "2 tokens and 1 log-probs"},
		{"too many", VLLM, func([]byte) []byte {
			return []byte(`{"choices": [{"token_ids": [1,2,3,4,5], "logprobs": {"content": [{"logprob":-1},{"logprob":-1},{"logprob":-1},{"logprob":-1},{"logprob":-1}]}}]}`)
		}, "tokens, but 4 were requested"},
		{"minus infinity", VLLM, func([]byte) []byte {
			return []byte(`{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": -9999.0}]}}]}`)
		}, "is -9999"},
		{"positive", VLLM, func([]byte) []byte {
			return []byte(`{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": 0.5}]}}]}`)
		}, "is 0.5"},
		{"foreign token", VLLM, func([]byte) []byte {
			return []byte(`{"choices": [{"token_ids": [64], "logprobs": {"content": [{"logprob": -1}]}}]}`)
		}, "outside the vocabulary"},
		{"negative token", VLLM, func([]byte) []byte {
			return []byte(`{"choices": [{"token_ids": [-1], "logprobs": {"content": [{"logprob": -1}]}}]}`)
		}, "outside the vocabulary"},
		{"large", VLLM, func([]byte) []byte { return bytes.Repeat([]byte(" "), 2<<20) }, "more than"},
		{"NaN", SGLang, func(b []byte) []byte {
			return []byte(`{"output_ids": [1], "meta_info": {"weight_version": "v", "output_token_logprobs": [[NaN, 1, null]]}}`)
		}, "invalid character"},
		{"no version", SGLang, func(b []byte) []byte {
			return []byte(`{"output_ids": [1], "meta_info": {"output_token_logprobs": [[-1, 1, null]]}}`)
		}, "no weight_version"},
		{"another token", SGLang, func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"output_ids":[`), []byte(`"output_ids":[1,`), 1)
		}, "tokens and"},
		{"the log-prob of another", SGLang, func(b []byte) []byte {
			return []byte(`{"output_ids": [2], "meta_info": {"weight_version": "v", "output_token_logprobs": [[-1, 1, null]]}}`)
		}, "its log-prob belongs to"},
		{"short pairs", SGLang, func(b []byte) []byte {
			return []byte(`{"output_ids": [1], "meta_info": {"weight_version": "v", "output_token_logprobs": [[-1]]}}`)
		}, "does not have a log-prob and an id"},
		{"foreign weights", SGLang, func(b []byte) []byte { return bytes.Replace(b, []byte(`"mgrpo.run`), []byte(`"mgrpo.other`), 1) }, "another trainer"},
	} {
		s := newServer(t, c.kind)
		p, _ := open(t, s, &trainer{weights: 1})
		s.set(func() { s.reply = c.edit })
		out, err := p.Generate(t.Context(), turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 4}))
		if err == nil || !strings.Contains(err.Error(), c.want) || len(out.Tokens) > 0 {
			t.Errorf("%s: got %+v and error %v, want %q", c.name, out, err, c.want)
		}
	}
}

// TestRoundedLogProb: the logarithm of a probability that a server rounded to a little more than 1 counts as 0.
func TestRoundedLogProb(t *testing.T) {
	p := &Policy{opt: Options{Vocabulary: 8}}
	for lp, want := range map[float64]bool{1.1920928e-07: true, 1e-3: false} {
		a := answer{ids: []int32{1}, logProbs: []float64{lp}}
		if err := a.check(p, prompt{most: 1}); (err == nil) != want || want && a.logProbs[0] != 0 {
			t.Errorf("%g: got %g, error %v", lp, a.logProbs[0], err)
		}
	}
}

// TestRestartedServer: a server that is killed during a turn, or between two turns, has other weights when it is started
// again. Its tokens are not used before it has loaded and verified the current weights. Turns in flight are sampled again.
func TestRestartedServer(t *testing.T) {
	for _, kind := range kinds {
		for _, flying := range []bool{true, false} {
			s, w := newServer(t, kind), &trainer{weights: 1}
			p, said := open(t, s, w)
			if flying {
				var once sync.Once
				s.set(func() { s.before = func() { once.Do(func() { s.kill(); s.restart() }) } })
			} else {
				s.kill()
				s.restart()
			}
			var turns sync.WaitGroup
			for rollout := range 6 {
				turns.Go(func() {
					r := turnOf(rollout, policy.Sampling{Temperature: 1, MaxNew: 8})
					c, err := p.Generate(t.Context(), r)
					if err != nil {
						t.Errorf("%s: %v", kind, err)
						return
					}
					holdsTo(t, r, c, w)
				})
			}
			turns.Wait()
			if n := strings.Count(said.String(), "has version 0"); n < 2 {
				t.Errorf("%s: the weights were verified %d times, want 2 or more:\n%s", kind, n, said)
			}
		}
	}
}

// expiring is a context whose deadline is over when expired is closed.
type expiring struct {
	context.Context
	expired chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.expired }

func (e expiring) Err() error {
	select {
	case <-e.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestAway: if a server does not come back, a turn ends with an error that names the server. It ends at the conversation's time limit or at
// store.timeout, and is not a completion.
func TestAway(t *testing.T) {
	s := newServer(t, VLLM)
	p, said := open(t, s, &trainer{weights: 1})
	s.kill()
	r := turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 4})
	var away *UnreachableError
	ctx := expiring{t.Context(), make(chan struct{})}
	note, expire := p.opt.Note, sync.OnceFunc(func() { close(ctx.expired) })
	p.opt.Note = func(text string) { note(text); expire() } // it waits for the server now
	if c, err := p.Generate(ctx, r); !errors.As(err, &away) || !strings.Contains(err.Error(), "wall_time") || c.Finish != "" || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the conversation's time limit: got %+v and error %v, want an UnreachableError", c, err)
	}
	p.opt.Patience = 50 * time.Millisecond
	if c, err := p.Generate(t.Context(), r); !errors.As(err, &away) || !strings.Contains(err.Error(), "store.timeout") || c.Finish != "" {
		t.Errorf("at store.timeout: got %+v and error %v, want an UnreachableError", c, err)
	}
	if !strings.Contains(said.String(), "waits for the engine at "+s.url()) {
		t.Errorf("got notes %s, want one that the policy waits for the server", said)
	}
	if _, err := New(t.Context(), &trainer{}, p.opt); !errors.As(err, &away) {
		t.Errorf("a server that never ran: got error %v, want an UnreachableError", err)
	}
}

// TestCancelled: a cancelled turn ends at once, with the cause.
func TestCancelled(t *testing.T) {
	s := newServer(t, VLLM)
	p, _ := open(t, s, &trainer{weights: 1})
	answer := make(chan struct{})
	answering := make(chan struct{}, 2)
	s.set(func() { s.before = func() { answering <- struct{}{}; <-answer } })
	defer close(answer)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-answering; cancel(why) }()
	r := turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 4})
	if c, err := p.Generate(ctx, r); !errors.Is(err, why) || c.Finish != policy.FinishCancelled {
		t.Errorf("got %+v and error %v, want a cancelled turn and %v", c, err, why)
	}
	var closing sync.WaitGroup
	closing.Go(func() { <-answering; p.Close(t.Context()) })
	if _, err := p.Generate(t.Context(), r); !errors.Is(err, policy.ErrClosed) {
		t.Errorf("a turn during Close: got error %v, want policy.ErrClosed", err)
	}
	closing.Wait()
	if entries, _ := os.ReadDir(p.opt.Folder); len(entries) != 0 {
		t.Errorf("after Close: got folders %v, want none", entries)
	}
}

// TestCancelledUpdate: a server whose update is cancelled resumes, because other clients wait for it.
func TestCancelledUpdate(t *testing.T) {
	s, w := newServer(t, VLLM), &trainer{weights: 1}
	p, _ := open(t, s, w)
	s.set(func() { s.events, s.broken = nil, "slow load" })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.UpdateWeights(ctx, 1) }()
	for loading := false; !loading; time.Sleep(time.Millisecond) {
		s.set(func() { loading = slices.Contains(s.events, "loading") })
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled update has no error")
	}
	s.set(func() {
		if s.paused || !slices.Contains(s.events, "/resume") {
			t.Errorf("paused %v after %q", s.paused, s.events)
		}
	})
}

// TestSeveralServers: queries are spread over the servers. If a server is lost, its turns are sampled by another.
func TestSeveralServers(t *testing.T) {
	a, b, w, said := newServer(t, VLLM), newServer(t, VLLM), &trainer{weights: 1}, &notes{}
	p, err := New(t.Context(), w, options(t, VLLM, said, a.url(), b.url()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	if err := p.UpdateWeights(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	homes := map[*replica]int{}
	for _, query := range []string{"q1", "q2"} {
		r := p.choose(policy.Key{Query: query})
		p.endTurn(r)
		homes[r]++
	}
	if len(homes) != 2 {
		t.Errorf("got queries by server %v, want one each", homes)
	}
	a.kill()
	for rollout := range 8 {
		r := turnOf(rollout, policy.Sampling{Temperature: 1, MaxNew: 8})
		r.Key.Query = []string{"q1", "q2", "q3", "q4"}[rollout%4]
		c, err := p.Generate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		holdsTo(t, r, c, w)
	}
	for _, r := range p.replicas {
		if dead := r.url == a.url(); r.lost.Load() != dead {
			t.Errorf("%s: got lost=%v, want %v", r.url, !dead, dead)
		}
	}
	a.restart()
	w.weights = 2
	if err := p.UpdateWeights(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if a.weights != 2 || b.weights != 2 {
		t.Errorf("the servers have weights %d and %d, want 2", a.weights, b.weights)
	}
}

// TestLeftovers: folders of an earlier process of this agent are deleted, and other agents' folders are kept.
func TestLeftovers(t *testing.T) {
	s := newServer(t, VLLM)
	opt := options(t, VLLM, &notes{}, s.url())
	for _, name := range []string{"mgrpo.run.agent.v3.1-ABCDEFGH", ".mgrpo.run.agent.v4.2-ABCDEFGH.12345678.partial", "mgrpo.run.agent2.v3.1-ABCDEFGH", "model"} {
		if err := os.Mkdir(opt.Folder+"/"+name, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	p, err := New(t.Context(), &trainer{}, opt)
	if err != nil {
		t.Fatal(err)
	}
	p.Close(t.Context())
	entries, _ := os.ReadDir(opt.Folder)
	if len(entries) != 2 || entries[0].Name() != "model" && entries[1].Name() != "model" {
		t.Errorf("got folders %v, want 2: model and the other agent's", entries)
	}
}

// TestKeys: the key is removed from messages that quote a server's reply.
func TestKeys(t *testing.T) {
	s := newServer(t, VLLM)
	p, _ := open(t, s, &trainer{weights: 1})
	r := p.replicas[0]
	r.key = "geheim"
	if q := r.quote("bad key geheim"); strings.Contains(q, "geheim") {
		t.Error(q)
	}
	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer guarded.Close()
	if _, err := Inspect(t.Context(), options(t, VLLM, &notes{}, guarded.URL)); err == nil || !strings.Contains(err.Error(), "engine.key_env") {
		t.Errorf("without a key: got error %v, want engine.key_env in it", err)
	}
}

func FuzzDecode(f *testing.F) {
	s := &server{kind: VLLM}
	f.Add(s.encode([]int32{1, 2}, []float64{-1, -2}))
	s.kind, s.stamp = SGLang, "mgrpo.run.agent.v1.1-ABCDEFGH"
	f.Add(s.encode([]int32{1, 2}, []float64{-1, -2}))
	f.Add([]byte(`{"choices":[{"token_ids":[9999999999],"logprobs":{"content":[{"logprob":1e999}]}}]}`))
	p := &Policy{opt: Options{Vocabulary: vocabulary}}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, api := range []protocol{&vllm{}, &sglang{}} {
			a, err := api.decode(body)
			if err != nil || a.check(p, prompt{most: 8}) != nil {
				continue
			}
			if len(a.ids) == 0 || len(a.ids) > 8 || len(a.ids) != len(a.logProbs) {
				t.Fatalf("got %d tokens and %d log-probs from %s", len(a.ids), len(a.logProbs), body)
			}
			for i, lp := range a.logProbs {
				if math.IsNaN(lp) || math.IsInf(lp, 0) || lp > 0 || a.ids[i] < 0 || a.ids[i] >= vocabulary {
					t.Fatalf("got token %d with log-prob %v from %s", a.ids[i], lp, body)
				}
			}
			if !json.Valid(body) {
				t.Fatalf("invalid JSON was decoded: %s", body)
			}
		}
	})
}
