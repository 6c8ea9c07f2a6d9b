package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
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

// notes collects what a policy says.
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

// open is a policy on a server, with its first weights.
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

// holdsTo checks a completion against the trainer's own log-probs.
func holdsTo(t *testing.T, r policy.Request, c policy.Completion, w *trainer) {
	t.Helper()
	prefix := slices.Clone(r.Tokens)
	if len(c.Tokens) == 0 || len(c.LogProbs) != len(c.Tokens) {
		t.Fatalf("%d tokens, %d log-probs", len(c.Tokens), len(c.LogProbs))
	}
	for i, id := range c.Tokens {
		if want := logProb(logitsOf(w.weights, prefix), id, r.Sampling.Temperature); math.Abs(want-float64(c.LogProbs[i])) > 1e-5 {
			t.Errorf("log-prob of token %d is %v, want %v", i, c.LogProbs[i], want)
		}
		prefix = append(prefix, id)
	}
}

// TestTurns: a turn ends by its own rules, its log-probs are of the run's temperature, and its seed is its key's.
func TestTurns(t *testing.T) {
	for _, kind := range kinds {
		s, w := newServer(t, kind), &trainer{weights: 1}
		p, said := open(t, s, w)
		if limit := p.ContextLimit(); limit != 40 { // the server's, less what SGLang keeps for itself
			t.Errorf("%s: context of %d", kind, limit)
		}
		if p.Deterministic() || !strings.Contains(said.String(), "not deterministic") {
			t.Errorf("%s: said %s", kind, said)
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
					t.Errorf("%s: the same key gave %v and %v, %v", kind, c.Tokens, again.Tokens, err)
				}
				if !slices.Equal(streamed[:len(c.Tokens)], c.Tokens) {
					t.Errorf("%s: shown %v of %v", kind, streamed, c.Tokens)
				}
				ending := policy.NewEnding(sampling, len(r.Tokens), 40, p.opt.TokenBytes)
				for i, id := range c.Tokens {
					if why, ended := ending.Add(id); ended != (i == len(c.Tokens)-1) || ended && why != c.Finish {
						t.Errorf("%s: token %d of %d ends the turn: %v %s, it says %s", kind, i, len(c.Tokens), ended, why, c.Finish)
					}
				}
				seen[c.Finish] = true
			}
		}
		if len(seen) != 3 {
			t.Errorf("%s: turns ended by %v only", kind, seen)
		}
		a, _ := p.Generate(t.Context(), turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 20}))
		b, _ := p.Generate(t.Context(), turnOf(1, policy.Sampling{Temperature: 1, MaxNew: 20}))
		if slices.Equal(a.Tokens, b.Tokens) {
			t.Errorf("%s: two rollouts are one", kind)
		}
		if c, err := p.Generate(t.Context(), policy.Request{Tokens: make([]int32, 40), Sampling: policy.Sampling{Temperature: 1, MaxNew: 1}}); err != nil || c.Finish != policy.FinishContext {
			t.Errorf("%s: a full context gave %+v, %v", kind, c, err)
		}
		if st := p.Stats(); st.Requests != 66 || st.SampledTokens == 0 || st.PromptTokens != 66*3 {
			t.Errorf("%s: %+v", kind, st)
		}
	}
}

// TestEarlyStops: a server that stops where the turn does not end is asked to go on from there.
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
		t.Errorf("%d tokens, %s, in %d requests", len(c.Tokens), c.Finish, len(s.asked))
	}
}

// TestUpdates: servers get each version after the turns in flight, drop their caches, and its folder goes when they hold
// the next.
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
				t.Errorf("%s: version %d, %v", kind, c.Version, err)
			}
			holdsTo(t, r, c, &old)
		})
		<-answering
		first := p.held.folder
		w.weights = 2
		flying.Go(func() {
			if err := p.UpdateWeights(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
		for p.current().stamp == first[strings.LastIndexByte(first, '/')+1:] { // until the update waits for the turn
			time.Sleep(time.Millisecond)
		}
		close(answer)
		flying.Wait()
		c, err := p.Generate(t.Context(), r)
		if err != nil || c.Version != 1 || p.Version() != 1 {
			t.Fatalf("%s: %+v, %v", kind, c, err)
		}
		holdsTo(t, r, c, w)
		cleared := map[Kind]string{VLLM: "/reset_prefix_cache", SGLang: "flush_cache"}[kind]
		if i := slices.Index(s.events, "load"); i < slices.Index(s.events, "answer") || !slices.Contains(s.events[max(i, 0):], cleared) {
			t.Errorf("%s: %v", kind, s.events)
		}
		if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %s is still there: %v", kind, first, err)
		}
		if entries, _ := os.ReadDir(p.opt.Folder); len(entries) != 1 {
			t.Errorf("%s: %v", kind, entries)
		}
	}
}

// TestFixedWeights: weights that change no more are written once, and their version rises nevertheless.
func TestFixedWeights(t *testing.T) {
	s := newServer(t, VLLM)
	p, _ := open(t, s, &trainer{weights: 1, fixed: true})
	s.set(func() { s.events = nil })
	if err := p.UpdateWeights(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	c, err := p.Generate(t.Context(), turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 4}))
	if err != nil || c.Version != 1 || len(s.events) > 0 {
		t.Errorf("version %d, %v, %v", c.Version, err, s.events)
	}
}

// TestRefusals: what cannot be proven is not used, and the error says what to do.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		kind         Kind
		broken, want string
	}{
		{VLLM, "no development mode", "VLLM_SERVER_DEV_MODE=1"},
		{VLLM, "no extension", "--worker-extension-cls"},
		{VLLM, "workers apart", "its workers hold different weights"},
		{VLLM, "raw", "--logprobs-mode processed_logprobs"},
		{VLLM, "says nothing of it", "was asked to load the weights"},
		{VLLM, "stale", "it does not sample with the agent's weights"},
		{SGLang, "no versions", "cannot prove its weights"},
		{SGLang, "raw", "do not include the temperature"},
		{SGLang, "says nothing of it", "does not keep weight_version"},
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
			t.Errorf("%s, %s: %v", c.kind, c.broken, err)
		}
	}
}

// TestWrongKind: the address is of something else.
func TestWrongKind(t *testing.T) {
	for _, kind := range kinds {
		other := newServer(t, map[Kind]Kind{VLLM: SGLang, SGLang: VLLM}[kind])
		if _, err := New(t.Context(), &trainer{}, options(t, kind, &notes{}, other.url())); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestStaleWeights: a server that reports a version it did not load is caught, also where the two differ by less than the
// tolerance.
func TestStaleWeights(t *testing.T) {
	for _, kind := range kinds {
		s, w := newServer(t, kind), &trainer{weights: 1}
		p, _ := open(t, s, w)
		s.set(func() { s.broken = "stale" })
		w.weights = 2
		err := p.UpdateWeights(t.Context(), 1)
		if err == nil || !strings.Contains(err.Error(), "it still samples with the previous weights") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestHostileReplies: no reply that is not what was asked for becomes a turn.
// TestWeightsOfOthers: a server to which somebody else has given weights since is not given others, which would hide that turns may have
// been sampled by them.
func TestWeightsOfOthers(t *testing.T) {
	for _, kind := range []Kind{VLLM, SGLang} {
		s, w := newServer(t, kind), &trainer{}
		p, _ := open(t, s, w)
		if err := p.UpdateWeights(t.Context(), 1); err != nil {
			t.Fatal(kind, err)
		}
		s.set(func() { s.stamp = "mgrpo.other.v7" })
		if err := p.UpdateWeights(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "another trainer") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestHostileReplies(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		edit func([]byte) []byte
		want string
	}{
		{"not JSON", VLLM, func([]byte) []byte { return []byte("<html>") }, "invalid character"},
		{"no choice", VLLM, func([]byte) []byte { return []byte(`{"choices": []}`) }, "0 choices"},
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
		{"large", VLLM, func([]byte) []byte { return bytes.Repeat([]byte(" "), 2<<20) }, "exceeds"},
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
			t.Errorf("%s: %+v, %v", c.name, out, err)
		}
	}
}

// TestRestartedServer: a server that is killed in the middle of turns, or between two, has other weights when it comes back.
// No token of those is used: it gets the weights again, proves them, and the turns are played anew.
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
				t.Errorf("%s: proved %d times:\n%s", kind, n, said)
			}
		}
	}
}

// TestAway: a server that does not come back is named, whether patience ends or the time of the conversation; neither is a
// completion.
func TestAway(t *testing.T) {
	s := newServer(t, VLLM)
	p, said := open(t, s, &trainer{weights: 1})
	s.kill()
	r := turnOf(0, policy.Sampling{Temperature: 1, MaxNew: 4})
	var away *AwayError
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("wall"))
	defer cancel()
	if c, err := p.Generate(ctx, r); !errors.As(err, &away) || !strings.Contains(err.Error(), "wall_time") || c.Finish != "" || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the conversation's time: %+v, %v", c, err)
	}
	p.opt.Patience = 50 * time.Millisecond
	if c, err := p.Generate(t.Context(), r); !errors.As(err, &away) || !strings.Contains(err.Error(), "store.timeout") || c.Finish != "" {
		t.Errorf("patience: %+v, %v", c, err)
	}
	if !strings.Contains(said.String(), "waits for the engine at "+s.url()) {
		t.Errorf("said %s", said)
	}
	if _, err := New(t.Context(), &trainer{}, p.opt); !errors.As(err, &away) {
		t.Errorf("a server that never was: %v", err)
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
		t.Errorf("%+v, %v", c, err)
	}
	var closing sync.WaitGroup
	closing.Go(func() { <-answering; p.Close(t.Context()) })
	if _, err := p.Generate(t.Context(), r); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	closing.Wait()
	if entries, _ := os.ReadDir(p.opt.Folder); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestSeveralServers: queries are spread over the servers, and a lost one is no turn's end.
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
		p.leave(r)
		homes[r]++
	}
	if len(homes) != 2 {
		t.Errorf("both queries are at one server: %v", homes)
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
			t.Errorf("%s counts as lost: %v, want %v", r.url, !dead, dead)
		}
	}
	a.restart()
	w.weights = 2
	if err := p.UpdateWeights(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if a.weights != 2 || b.weights != 2 {
		t.Errorf("the servers hold %d and %d", a.weights, b.weights)
	}
}

// TestLeftovers: folders of an earlier process of this agent go, and nobody else's.
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
		t.Errorf("%v", entries)
	}
}

// TestKeys: the key goes with every request, and into no message.
func TestKeys(t *testing.T) {
	s := newServer(t, VLLM)
	p, _ := open(t, s, &trainer{weights: 1})
	r := p.replicas[0]
	r.key = "geheim"
	if q := r.quote("bad key geheim"); strings.Contains(q, "geheim") {
		t.Error(q)
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
				t.Fatalf("%d tokens, %d log-probs of %s", len(a.ids), len(a.logProbs), body)
			}
			for i, lp := range a.logProbs {
				if math.IsNaN(lp) || math.IsInf(lp, 0) || lp > 0 || a.ids[i] < 0 || a.ids[i] >= vocabulary {
					t.Fatalf("token %d, log-prob %v of %s", a.ids[i], lp, body)
				}
			}
			if !json.Valid(body) {
				t.Fatalf("no JSON: %s", body)
			}
		}
	})
}
