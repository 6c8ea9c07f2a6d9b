package local

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// windowed returns a model with one layer for each window: the number of tokens that the layer attends to, 0 for all.
func windowed(t *testing.T, windows ...int) *model.Model {
	t.Helper()
	c := denseConfig
	c.Windows = windows
	return longModel(t, c, len(windows))
}

// hybrid returns a model in which some layers are convolutions and the others are attention.
func hybrid(t *testing.T, convolves ...bool) *model.Model {
	t.Helper()
	c := hybridConfig
	c.ShortConv = &arch.ShortConv{Layers: convolves, Width: 3, Bias: true}
	return longModel(t, c, len(convolves))
}

// recurrent returns a model in which some layers have a gated delta rule and the others are attention.
func recurrent(t *testing.T, recurs ...bool) *model.Model {
	t.Helper()
	c, rule := recurrentConfig, *recurrentConfig.GatedDelta
	rule.Layers = recurs
	c.GatedDelta = &rule
	return longModel(t, c, len(recurs))
}

// longModel returns a model with enough positions for the requests of long.
func longModel(t *testing.T, c arch.Config, layers int) *model.Model {
	t.Helper()
	c.Layers, c.MaxPosition = layers, 320
	return testModelOf(t, c, "cpu", 1, false)
}

// long returns requests that fill several blocks each: 4 rollouts of each of 3 prompts.
func long() []policy.Request {
	rng := rand.New(rand.NewPCG(3, 4))
	var out []policy.Request
	for q := range 3 {
		prompt := make([]int32, 60+45*q)
		for i := range prompt {
			prompt[i] = rng.Int32N(113)
		}
		for k := range 4 {
			out = append(out, policy.Request{Tokens: prompt, Sampling: policy.Sampling{Temperature: 1, MaxNew: 50 + k},
				Key: policy.Key{RunSeed: 3, Query: fmt.Sprint("q", q), Rollout: k, Agent: "a"}})
		}
	}
	return out
}

// TestSmallCache: the size of the cache does not change a bit of the sampled tokens and log-probs. The smallest cache holds
// one sequence, so each turn takes another's blocks, and sequences are put back into the queue in the middle of a turn.
func TestSmallCache(t *testing.T) {
	for _, c := range []struct {
		m    *model.Model
		full bool // some layer attends to all tokens, so blocks are freed only with their sequence
	}{
		{windowed(t, 0, 0), true}, {windowed(t, 40, 40), false}, {windowed(t, 0, 40), true}, {windowed(t, 20, 0, 70), false},
		{hybrid(t, true, false, true), true}, {hybrid(t, true, true), true}, {recurrent(t, true, true, false, true), true},
	} {
		t.Run(fmt.Sprint(c.m.Config.Family, c.m.Config.Windows, c.m.Config.ShortConv), func(t *testing.T) {
			m, reqs := c.m, long()
			want := run(t, testEngine(t, m, Options{Slots: 1, NoPrefixes: true}), reqs, 1, inOrder(len(reqs)))
			for _, opt := range []Options{
				{Slots: 12},
				{Slots: 12, CacheTokens: 320},
				{Slots: 12, CacheTokens: 320, NoPrefixes: true},
				{Slots: 12, CacheTokens: 700, PassRows: 50},
				{Slots: 3, CacheTokens: 700},
			} {
				e := testEngine(t, m, opt)
				got := run(t, e, reqs, 12, rand.New(rand.NewPCG(5, 6)).Perm(len(reqs)))
				for i := range want {
					for turn := range want[i] {
						equal(t, fmt.Sprintf("%+v, request %d turn %d", opt, i, turn), got[i][turn], want[i][turn])
					}
				}
				s := e.Stats()
				if small := opt.CacheTokens > 0; small && s.EvictedTokens == 0 || !small && s.PutBack > 0 || !small && c.full && s.EvictedTokens > 0 {
					t.Errorf("%+v: %d tokens were evicted and %d sequences put back, want evictions in a small cache only", opt, s.EvictedTokens, s.PutBack)
				}
				if opt.CacheTokens == 320 && opt.NoPrefixes && c.full && s.Recomputed == 0 || s.PutBack == 0 && s.Recomputed > 0 {
					t.Errorf("%+v: %d sequences were put back and %d tokens computed again, want neither or both", opt, s.PutBack, s.Recomputed)
				}
				e.engine.mu.Lock()
				e.engine.pages.verify(t)
				if e.engine.pages.states != nil {
					e.engine.pages.verifyStates(t, arch.RecurrentStates(opt.Slots, 0))
				}
				e.engine.mu.Unlock()
			}
		})
	}
}

// verify counts the owners of each block and the free blocks, and compares them with the counters. No sequence may be in flight.
func (p *pages) verify(t *testing.T) {
	t.Helper()
	for g, pool := range p.pools {
		owners := make([]int, len(pool.owners))
		for _, seq := range p.cached {
			if seq.busy || len(seq.tables[g]) != arch.CacheBlocks(seq.filled) {
				t.Errorf("a cached sequence of %d tokens has %d blocks, want %d; busy is %v, want false", seq.filled, len(seq.tables[g]), arch.CacheBlocks(seq.filled), seq.busy)
			}
			for _, b := range seq.tables[g] {
				if b != noBlock {
					owners[b]++
				}
			}
		}
		free := 0
		for b, n := range owners {
			if n != pool.owners[b] || pool.inFlight[b] != 0 || slices.Contains(pool.free, int32(b)) != (n == 0) {
				t.Errorf("block %d has %d owners, its counter is %d, and %d of them are in flight, want 0", b, n, pool.owners[b], pool.inFlight[b])
			}
			if n == 0 {
				free++
			}
		}
		if len(pool.free) != free || pool.available != len(owners) {
			t.Errorf("%d of %d blocks are free; %d are listed as free, and %d are available", free, len(owners), len(pool.free), pool.available)
		}
	}
}

// verifyStates counts the recurrent states: each of them is free or belongs to one cached sequence.
func (p *pages) verifyStates(t *testing.T, total int) {
	t.Helper()
	owners := map[int32]int{}
	for _, n := range p.states.free {
		owners[n]++
	}
	for _, seq := range p.cached {
		owners[seq.state]++
		for _, s := range seq.snapshots {
			owners[s.number]++
			if s.at > seq.filled {
				t.Errorf("a cached sequence of %d tokens has a snapshot after %d", seq.filled, s.at)
			}
		}
	}
	for n := range total {
		if owners[int32(n)] != 1 {
			t.Errorf("state %d has %d owners, want 1", n, owners[int32(n)])
		}
	}
	if len(owners) != total {
		t.Errorf("%d states, want %d", len(owners), total)
	}
}

// TestManyConversations: 64 conversations of several turns sample the same tokens in a cache for 64 and in a cache for 16 of full length.
// Most of the 64 wait between two turns.
func TestManyConversations(t *testing.T) {
	const conversations, full = 64, 16
	m := windowed(t, 0, 0)
	play := func(opt Options) ([]policy.Completion, policy.Stats) {
		e := testEngine(t, m, opt)
		out := make([]policy.Completion, conversations)
		histories := make([][]int32, conversations)
		for turn := range 4 {
			var wg sync.WaitGroup
			for i := range conversations { // all other conversations take a turn between two turns of one
				wg.Go(func() {
					prompt := append(histories[i], make([]int32, 20)...)
					for j := len(histories[i]); j < len(prompt); j++ {
						prompt[j] = int32((i*17 + j*5 + turn) % 113)
					}
					c, err := e.Generate(t.Context(), policy.Request{Tokens: prompt, Sampling: policy.Sampling{Temperature: 1, MaxNew: 20 + i%40},
						Key: policy.Key{Rollout: i}, Computed: max(len(histories[i])-1, 0)})
					if err != nil {
						t.Error(err)
					}
					out[i], histories[i] = c, append(prompt, c.Tokens...)
				})
			}
			wg.Wait()
		}
		e.engine.mu.Lock()
		e.engine.pages.verify(t)
		e.engine.mu.Unlock()
		return out, e.Stats()
	}
	want, roomy := play(Options{Slots: conversations})
	got, s := play(Options{Slots: full})
	for i := range want {
		equal(t, fmt.Sprint("conversation ", i), got[i], want[i])
	}
	t.Logf("cache for %d: %d of %d prompt tokens reused; cache for %d: %d reused, %d tokens evicted, %d sequences put back", conversations,
		roomy.ReusedTokens, roomy.PromptTokens, full, s.ReusedTokens, s.EvictedTokens, s.PutBack)
	if again := roomy.ReusedTokens - s.ReusedTokens; roomy.Recomputed != 0 || s.Recomputed < again || s.PutBack == 0 && s.Recomputed != again {
		t.Errorf("the small cache computed %d tokens again, want %d; the large one %d, want 0", s.Recomputed, again, roomy.Recomputed)
	}
	if roomy.EvictedTokens > 0 || s.EvictedTokens == 0 || s.ReusedTokens == 0 { // the number of reused tokens depends on the order of turns
		t.Errorf("large cache %+v, want no evictions; small cache %+v, want evictions and reused tokens", roomy, s)
	}
}

// TestStaleKeysAreNotReused: after an update of weights, a new sequence neither reuses keys
// and values of the old weights nor waits for them. This holds while a sequence in flight still
// reads them and after its end.
func TestStaleKeysAreNotReused(t *testing.T) {
	c := arch.Config{Family: arch.Qwen3, Layers: 1, KVHeads: 1, HeadDim: 8}
	p := newPages(&c, Options{Slots: 2, PassRows: 64, CacheTokens: 8 * arch.CacheBlock})
	owner, tokens := &Tenant{}, make([]int32, 3*arch.CacheBlock)
	seq, _ := p.open(owner, tokens, prefix{})
	if n := len(tokens) - 10; p.extend(seq, n) {
		p.fill(seq, n)
	}
	if from, soon := p.find(owner, tokens); from.from != seq || !soon {
		t.Fatalf("before the update: got prefix %+v, wait for more %v; want the cached sequence in flight, true", from, soon)
	}
	p.forget(owner)
	if from, soon := p.find(owner, tokens); from.reuse != 0 || soon {
		t.Errorf("old sequence in flight: %d tokens reused, wait for more %v; want 0, false", from.reuse, soon)
	}
	p.close(seq)
	if from, soon := p.find(owner, tokens); from.reuse != 0 || soon {
		t.Errorf("old sequence ended: %d tokens reused, wait for more %v; want 0, false", from.reuse, soon)
	}
}
