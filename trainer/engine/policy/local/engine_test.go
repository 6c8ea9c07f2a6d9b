package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testModel returns a random model with several heads and layers.
func testModel(t *testing.T, threads int) *model.Model { return testModelIn(t, threads, false) }

// testModelIn returns a random model. If half is set, it has a bf16 copy of its weights, from which the engine generates.
func testModelIn(t *testing.T, threads int, half bool) *model.Model {
	t.Helper()
	return testModelOn(t, "cpu", threads, half)
}

func testModelOn(t *testing.T, device string, threads int, half bool) *model.Model {
	t.Helper()
	return testModelOf(t, denseConfig, device, threads, half)
}

func testModelOf(t *testing.T, c arch.Config, device string, threads int, half bool) *model.Model {
	t.Helper()
	dev, err := torch.Open(device, threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return randomModel(t, dev, c, half)
}

var denseConfig = arch.Config{Family: arch.Qwen3, VocabSize: 113, Hidden: 96, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 24, FFN: 256,
	RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 160, Tied: true}

// hybridConfig has a layer of attention between layers of convolutions.
var hybridConfig = arch.Config{Family: arch.LFM2, VocabSize: 113, Hidden: 96, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 24, FFN: 128,
	RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 160, Tied: true, ShortConv: &arch.ShortConv{Layers: []bool{true, false, true}, Width: 4}}

// recurrentConfig has a layer of attention between layers of gated delta rules.
var recurrentConfig = arch.Config{Family: arch.Qwen35, VocabSize: 113, Hidden: 96, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 24, Rope: arch.Rope{Dim: 6, Theta: 1e4}, FFN: 128,
	RMSEps: 1e-6, MaxPosition: 160, Tied: true,
	GatedDelta: &arch.GatedDelta{Layers: []bool{true, false, true}, KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 40, Width: 4}}

func randomModel(t *testing.T, dev *torch.Device, c arch.Config, half bool) *model.Model {
	t.Helper()
	ctx := context.Background()
	m, err := model.Random(ctx, dev, c, 7, model.Options{Compute: torch.Float32, HalfCopy: half})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(ctx) })
	return m
}

func testEngine(t *testing.T, m *model.Model, opt Options) *Tenant {
	t.Helper()
	return testTenant(t, m, opt, TenantOptions{})
}

func testTenant(t *testing.T, m *model.Model, opt Options, tenantOpt TenantOptions) *Tenant {
	t.Helper()
	e, err := OpenTenant(context.Background(), m, opt, tenantOpt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

// TestGather: requests that several goroutines make at the same time are planned as one pass, also on one processor. There the engine's
// goroutine could otherwise run after the first request and plan a pass for it alone.
func TestGather(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const sequences, times = 8, 21
	together := 0
	for range times { // preemption of a goroutine may split a pass now and then, so most of the passes have to be whole, not all
		e := newEngine(&model.Model{Config: arch.Config{VocabSize: 113, Layers: 1}},
			Options{Slots: sequences, Context: 16, CacheTokens: sequences * arch.CacheBlock, PassRows: 512})
		tenant := &Tenant{engine: e, model: e.executor.model, opt: TenantOptions{Context: 16}}
		var asking sync.WaitGroup
		for i := range int32(sequences) {
			asking.Go(func() {
				_, err := tenant.Generate(t.Context(), policy.Request{Tokens: []int32{i}, Sampling: policy.Sampling{MaxNew: 1}})
				if !errors.Is(err, policy.ErrClosed) {
					t.Errorf("got %v", err)
				}
			})
		}
		if b, ok := e.next(); ok && b.rows == sequences {
			together++
		}
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		e.next() // fails the sequences in flight
		asking.Wait()
	}
	if together <= times/2 {
		t.Errorf("all %d sequences were in one pass %d times of %d, want more than half", sequences, together, times)
	}
}

// requests returns the first turns of 24 conversations: 6 rollouts of each of 4 prompts of different lengths.
func requests() []policy.Request {
	rng := rand.New(rand.NewPCG(1, 2))
	var out []policy.Request
	for q := range 4 {
		prompt := make([]int32, 3+17*q)
		for i := range prompt {
			prompt[i] = rng.Int32N(113)
		}
		for k := range 6 {
			out = append(out, policy.Request{
				Tokens:   prompt,
				Sampling: policy.Sampling{Temperature: 1, MaxNew: 5 + k, StopIDs: []int32{9}},
				Key:      policy.Key{RunSeed: 3, Step: 1, Query: fmt.Sprint("q", q), Rollout: k, Agent: "a"},
			})
		}
	}
	return out
}

// converse runs a request, appends an observation, and runs a second turn.
func converse(e *Tenant, r policy.Request) ([2]policy.Completion, error) {
	first, err := e.Generate(context.Background(), r)
	if err != nil {
		return [2]policy.Completion{}, err
	}
	r.Tokens = append(append(append([]int32{}, r.Tokens...), first.Tokens...), 21, 22, int32(23+r.Key.Rollout))
	second, err := e.Generate(context.Background(), r)
	return [2]policy.Completion{first, second}, err
}

// run runs all conversations in the given order, with at most `inFlight` at once.
func run(t *testing.T, e *Tenant, reqs []policy.Request, inFlight int, order []int) [][2]policy.Completion {
	t.Helper()
	out := make([][2]policy.Completion, len(reqs))
	var wg sync.WaitGroup
	limit := make(chan struct{}, inFlight)
	for _, i := range order {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			c, err := converse(e, reqs[i])
			if err != nil {
				t.Error(err)
			}
			out[i] = c
		})
	}
	wg.Wait()
	return out
}

func inOrder(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestBatchInvariance: tokens and log-probs have the same bits with 1, 3 and 16 sequences in flight, in any order of arrival, and with
// and without prefix sharing. The same holds with prompts computed in pieces, with another number of threads, and in a new engine.
func TestBatchInvariance(t *testing.T) {
	for name, c := range map[string]arch.Config{"attention": denseConfig, "convolutions": hybridConfig, "gated delta rules": recurrentConfig} {
		t.Run(name+" in fp32", func(t *testing.T) { testBatchInvariance(t, c, false) })
		t.Run(name+" in bf16", func(t *testing.T) { testBatchInvariance(t, c, true) })
		t.Run(name+" in bf16 with run.matmul bf16", func(t *testing.T) {
			defer torch.SetRoundFactors(false)
			torch.SetRoundFactors(true)
			testBatchInvariance(t, c, true)
		})
	}
}

func testBatchInvariance(t *testing.T, config arch.Config, half bool) {
	reqs := requests()
	want := run(t, testEngine(t, testModelOf(t, config, "cpu", 1, half), Options{Slots: 16, HalfCache: half}), reqs, 1, inOrder(len(reqs)))
	shuffled := rand.New(rand.NewPCG(5, 6)).Perm(len(reqs))
	for _, c := range []struct {
		name     string
		threads  int
		opt      Options
		inFlight int
		order    []int
		idle     int // threads of a second, idle device, which the engine may use
	}{
		{"3 in flight", 1, Options{Slots: 16}, 3, inOrder(len(reqs)), 0},
		{"16 in flight", 1, Options{Slots: 16}, 16, inOrder(len(reqs)), 0},
		{"16 in flight, shuffled", 1, Options{Slots: 16}, 16, shuffled, 0},
		{"without prefix sharing", 1, Options{Slots: 16, NoPrefixes: true}, 16, shuffled, 0},
		{"fewer slots than sequences", 1, Options{Slots: 5}, 16, shuffled, 0},
		{"prefill in pieces", 1, Options{Slots: 16, PassRows: 20}, 16, inOrder(len(reqs)), 0},
		{"2 threads", 2, Options{Slots: 16}, 16, shuffled, 0},
		{"threads of an idle device", 1, Options{Slots: 16}, 16, shuffled, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.idle > 0 {
				idle, err := torch.Open("cpu", c.idle)
				if err != nil {
					t.Fatal(err)
				}
				defer idle.Close()
				torch.SetIdleThreadLimit(c.threads + c.idle)
				defer torch.SetIdleThreadLimit(0)
			}
			c.opt.HalfCache = half
			e := testEngine(t, testModelOf(t, config, "cpu", c.threads, half), c.opt)
			got := run(t, e, reqs, c.inFlight, c.order)
			for i := range want {
				for turn := range want[i] {
					equal(t, fmt.Sprintf("request %d turn %d", i, turn), got[i][turn], want[i][turn])
				}
			}
			s := e.Stats()
			if c.inFlight > 1 && s.MaxInFlight < 2 {
				t.Errorf("at most %d sequences were in flight, want 2 or more", s.MaxInFlight)
			}
			if reused := s.ReusedTokens > 0; reused == c.opt.NoPrefixes {
				t.Errorf("reused %d of %d prompt tokens with NoPrefixes %v", s.ReusedTokens, s.PromptTokens, c.opt.NoPrefixes)
			}
		})
	}
}

// TestHalfCache: keys and values in bf16 change the log-probs of the same tokens, and only a little.
func TestHalfCache(t *testing.T) {
	prompt := requests()[18].Tokens
	sample := func(c arch.Config, opt Options) policy.Completion {
		r := policy.Request{Tokens: prompt, Sampling: policy.Sampling{Temperature: 1, MaxNew: 1}}
		got, err := testEngine(t, testModelOf(t, c, "cpu", 1, false), opt).Generate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, c := range []arch.Config{denseConfig, hybridConfig} {
		whole, half := sample(c, Options{Slots: 1}), sample(c, Options{Slots: 1, HalfCache: true})
		if d := math.Abs(float64(whole.LogProbs[0] - half.LogProbs[0])); whole.Tokens[0] != half.Tokens[0] || !(d > 0 && d < 0.02) {
			t.Errorf("%d, %v; with a cache in bf16 %d, %v", whole.Tokens[0], whole.LogProbs, half.Tokens[0], half.LogProbs)
		}
	}
}

func equal(t *testing.T, what string, got, want policy.Completion) {
	t.Helper()
	if got.Finish != want.Finish || len(got.Tokens) != len(want.Tokens) || len(got.LogProbs) != len(want.Tokens) {
		t.Fatalf("%s: %d tokens, %s; want %d, %s", what, len(got.Tokens), got.Finish, len(want.Tokens), want.Finish)
	}
	for i := range want.Tokens {
		if got.Tokens[i] != want.Tokens[i] || got.LogProbs[i] != want.LogProbs[i] {
			t.Fatalf("%s, token %d: %d (%v), want %d (%v)", what, i, got.Tokens[i], got.LogProbs[i], want.Tokens[i], want.LogProbs[i])
		}
	}
}

// TestPrefixIsComputedOnce: a prompt is computed once for all its rollouts, also for rollouts that begin after others have ended.
func TestPrefixIsComputedOnce(t *testing.T) {
	for name, c := range map[string]arch.Config{"attention": denseConfig, "gated delta rules": recurrentConfig} {
		for _, slots := range []int{8, 2} {
			t.Run(fmt.Sprint(name, ", slots ", slots), func(t *testing.T) {
				e := testEngine(t, testModelOf(t, c, "cpu", 1, false), Options{Slots: slots})
				reqs := requests()[18:24] // 6 rollouts of the longest prompt
				run(t, e, reqs, 6, inOrder(6))
				s := e.Stats()
				prompt := int64(len(reqs[0].Tokens))
				computedOnce := 5 * (prompt - 1) // every rollout but the first reuses all but the last token
				if s.ReusedTokens < computedOnce {
					t.Errorf("reused %d prompt tokens, want at least %d", s.ReusedTokens, computedOnce)
				}
			})
		}
	}
}

// TestTurnsContinueFromTheirStates: if all recurrent states fit, a conversation computes each token once. Conversations whose prompts have
// a common beginning compute the beginning once.
func TestTurnsContinueFromTheirStates(t *testing.T) {
	e := testEngine(t, testModelOf(t, recurrentConfig, "cpu", 1, false), Options{Slots: 4})
	ask := func(rollout int, prompt []int32) []int32 {
		t.Helper()
		c, err := e.Generate(t.Context(), policy.Request{Tokens: prompt, Sampling: policy.Sampling{Temperature: 1, MaxNew: 5}, Key: policy.Key{Rollout: rollout}})
		if err != nil {
			t.Fatal(err)
		}
		return append(slices.Clone(prompt), c.Tokens...)
	}
	history, reused := ask(0, inTokens(40)), int64(0)
	for range 3 {
		before := int64(len(history)) - 1 // the last sampled token has not been computed
		history = ask(0, append(history, 7, 8, 9))
		if got := e.Stats().ReusedTokens - reused; got != before {
			t.Errorf("reused %d tokens of a conversation, want %d", got, before)
		}
		reused = e.Stats().ReusedTokens
	}
	other := inTokens(40)
	other[39] = 99 // differs from the first prompt in the last token only; the state before that token is kept
	ask(1, other)
	if got := e.Stats().ReusedTokens - reused; got != 39 {
		t.Errorf("reused %d tokens of a prompt, want 39", got)
	}
}

func inTokens(n int) (tokens []int32) {
	for i := range n {
		tokens = append(tokens, int32(i+3))
	}
	return tokens
}

// TestStatesAreBounded: an engine without room for all recurrent states gives up old ones, and the sampled tokens do not change.
func TestStatesAreBounded(t *testing.T) {
	m := testModelOf(t, recurrentConfig, "cpu", 1, false)
	reqs := requests()
	want := run(t, testEngine(t, m, Options{Slots: 16}), reqs, 1, inOrder(len(reqs)))
	e := testEngine(t, m, Options{Slots: 1, CacheTokens: 160 * len(reqs)}) // 2 states, and blocks for all conversations
	got := run(t, e, reqs, 8, rand.New(rand.NewPCG(5, 6)).Perm(len(reqs)))
	for i := range want {
		for turn := range want[i] {
			equal(t, fmt.Sprintf("request %d turn %d", i, turn), got[i][turn], want[i][turn])
		}
	}
	if s := e.Stats(); s.EvictedTokens == 0 {
		t.Errorf("no cached token was given up: %+v", s)
	}
}

// TestTokensAreKeyedByPosition: a request whose prompt ends with the first k sampled tokens of a turn samples the rest of the same turn.
func TestTokensAreKeyedByPosition(t *testing.T) {
	e := testEngine(t, testModel(t, 1), Options{Slots: 2})
	r := policy.Request{Tokens: []int32{1, 2, 3}, Sampling: policy.Sampling{Temperature: 1, MaxNew: 12}, Key: policy.Key{RunSeed: 3, Query: "q", Agent: "a"}}
	whole, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for k := 1; k < len(whole.Tokens); k++ {
		rest := r
		rest.Tokens, rest.Sampling.MaxNew = slices.Concat(r.Tokens, whole.Tokens[:k]), r.Sampling.MaxNew-k
		got, err := e.Generate(t.Context(), rest)
		if err != nil || !slices.Equal(got.Tokens, whole.Tokens[k:]) || !slices.Equal(got.LogProbs, whole.LogProbs[k:]) {
			t.Errorf("after %d tokens: %v, want %v (%v)", k, got.Tokens, whole.Tokens[k:], err)
		}
	}
}

func TestFinishReasons(t *testing.T) {
	m := testModel(t, 1)
	e := testTenant(t, m, Options{Slots: 2}, TenantOptions{Context: 20, TokenBytes: func(id int32) []byte { return []byte{'a' + byte(id%26)} }})
	ask := func(r policy.Request) policy.Completion {
		t.Helper()
		c, err := e.Generate(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	base := policy.Request{Tokens: []int32{1, 2, 3}, Sampling: policy.Sampling{Temperature: 1, MaxNew: 6}}
	free := ask(base)
	if free.Finish != policy.FinishLength || len(free.Tokens) != 6 {
		t.Errorf("%s after %d tokens, want length after 6", free.Finish, len(free.Tokens))
	}
	stop := base
	stop.Sampling.StopIDs = []int32{free.Tokens[2]}
	if c := ask(stop); c.Finish != policy.FinishStop || c.Tokens[len(c.Tokens)-1] != free.Tokens[2] {
		t.Errorf("stop id: got %v, want a stop after token %d", c, free.Tokens[2])
	}
	text := base
	text.Sampling.StopStrings = []string{string([]byte{'a' + byte(free.Tokens[1]%26), 'a' + byte(free.Tokens[2]%26)})}
	if c := ask(text); c.Finish != policy.FinishStop || len(c.Tokens) != 3 {
		t.Errorf("stop string over two tokens: %s after %d tokens, want stop after 3", c.Finish, len(c.Tokens))
	}
	long := base
	long.Sampling.MaxNew = 100
	if c := ask(long); c.Finish != policy.FinishContext || len(c.Tokens) != 17 {
		t.Errorf("%s after %d tokens, want context after 17", c.Finish, len(c.Tokens))
	}
	long.Tokens = make([]int32, 20)
	if c := ask(long); c.Finish != policy.FinishContext || len(c.Tokens) != 0 {
		t.Errorf("full context: %s after %d tokens, want context after 0", c.Finish, len(c.Tokens))
	}
}

func TestRefusals(t *testing.T) {
	e := testEngine(t, testModel(t, 1), Options{Slots: 1})
	for name, r := range map[string]policy.Request{
		"empty prompt":          {Sampling: policy.Sampling{MaxNew: 1}},
		"token out of range":    {Tokens: []int32{113}, Sampling: policy.Sampling{MaxNew: 1}},
		"nothing to sample":     {Tokens: []int32{1}},
		"strings without bytes": {Tokens: []int32{1}, Sampling: policy.Sampling{MaxNew: 1, StopStrings: []string{"x"}}},
	} {
		if _, err := e.Generate(context.Background(), r); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestCancellation: two calls share a context that is cancelled after the first token. Both return the cause and the tokens sampled so far.
// One of the calls is still waiting for the only slot and has no tokens.
func TestCancellation(t *testing.T) {
	e := testEngine(t, testModel(t, 1), Options{Slots: 1})
	ctx, cancel := context.WithCancelCause(context.Background())
	enough := errors.New("enough")
	long := policy.Request{Tokens: []int32{1}, Sampling: policy.Sampling{Temperature: 1, MaxNew: 150}}
	long.OnToken = func(int32) { cancel(enough) }
	sampled := make(chan int, 2)
	for range 2 {
		go func() {
			c, err := e.Generate(ctx, long)
			if !errors.Is(err, enough) || c.Finish != policy.FinishCancelled || len(c.LogProbs) != len(c.Tokens) {
				t.Errorf("cancelled call: got error %v and %+v, want error %v", err, c, enough)
			}
			sampled <- len(c.Tokens)
		}()
	}
	if n := <-sampled + <-sampled; n != 1 {
		t.Errorf("%d tokens were sampled, want 1", n)
	}
	c, err := e.Generate(context.Background(), policy.Request{Tokens: []int32{1}, Sampling: policy.Sampling{MaxNew: 2}})
	if err != nil || len(c.Tokens) != 2 {
		t.Errorf("a call after the cancelled ones: got %v, error %v; want 2 tokens", c, err)
	}
}

func TestLoadDropsTheCache(t *testing.T) {
	m := testModel(t, 1)
	e := testEngine(t, m, Options{Slots: 2})
	r := policy.Request{Tokens: []int32{1, 2, 3, 4, 5, 6}, Sampling: policy.Sampling{MaxNew: 4}}
	before, err := e.Generate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	err = m.Device.Do(context.Background(), func(s *torch.Scope) error {
		m.Master.Tensor.Narrow(0, 0, 113*96).Scale_(0.5)
		m.Master.Tensor.Narrow(0, 5*96, 96).Scale_(9)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.UpdateWeights(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	after, err := e.Generate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := testEngine(t, m, Options{Slots: 2}).Generate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "after new weights", after, fresh)
	if after.Version != 1 || after.LogProbs[0] == before.LogProbs[0] {
		t.Errorf("version %d, want 1; first log-prob %v, want another one than before the update, %v", after.Version, after.LogProbs[0], before.LogProbs[0])
	}
}

func TestClosedEngine(t *testing.T) {
	e := testEngine(t, testModel(t, 1), Options{Slots: 1})
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err := e.Generate(context.Background(), policy.Request{Tokens: []int32{1}, Sampling: policy.Sampling{MaxNew: 1}})
	if !errors.Is(err, policy.ErrClosed) {
		t.Errorf("error %v, want policy.ErrClosed", err)
	}
}
