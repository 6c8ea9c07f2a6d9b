package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// randomAdapters returns random adapters of a model, large enough to change the sampled tokens.
func randomAdapters(t *testing.T, base *model.Model, r int, targets ...string) *model.Adapters {
	t.Helper()
	spec := lora.New(r, 0, false, targets)
	layout, err := spec.Layout(base.Config)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(uint64(r), 9))
	a, err := model.Adapt(t.Context(), base, lora.PEFT{Spec: spec}, layout, func(_ int64, dst []float32) error {
		for i := range dst {
			dst[i] = float32(rng.NormFloat64()) / 8
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(context.Background()) })
	return a
}

func testShared(t *testing.T, base *model.Model, opt Options) *Engine {
	t.Helper()
	e, err := Open(t.Context(), base, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

func join(t *testing.T, e *Engine, m *model.Model, tenantOpt TenantOptions) *Tenant {
	t.Helper()
	tenant, err := e.Join(t.Context(), m, tenantOpt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tenant.Close(context.Background()) })
	return tenant
}

// hold keeps the device busy, so that no pass runs until release is called.
func hold(t *testing.T, e *Engine) (release func()) {
	t.Helper()
	held, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- e.dev.Do(context.Background(), func(*torch.Scope) error { <-held; return nil })
	}()
	return func() {
		close(held)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// waitFor waits until the number of sequences that run or wait in the engine reaches `sequences`.
func waitFor(e *Engine, sequences int) {
	for n := 0; n < sequences; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		n = len(e.running) + len(e.queue)
		e.mu.Unlock()
	}
}

// together sends all requests at once from each tenant. Sampling begins when all have arrived.
func together(t *testing.T, e *Engine, reqs []policy.Request, tenants ...*Tenant) [][]policy.Completion {
	t.Helper()
	out := make([][]policy.Completion, len(tenants))
	release := hold(t, e)
	var wg sync.WaitGroup
	for i, tenant := range tenants {
		out[i] = make([]policy.Completion, len(reqs))
		for j, r := range reqs {
			wg.Go(func() {
				var err error
				if out[i][j], err = tenant.Generate(context.Background(), r); err != nil {
					t.Error(err)
				}
			})
		}
	}
	waitFor(e, len(tenants)*len(reqs))
	release()
	wg.Wait()
	return out
}

// eightRequests returns eight requests, two of each prompt.
func eightRequests(newTokens int) (out []policy.Request) {
	for i := range 8 {
		prompt := make([]int32, 5+i/2*9)
		for j := range prompt {
			prompt[j] = int32(1 + (i/2*31+j*7)%110)
		}
		out = append(out, policy.Request{Tokens: prompt, Sampling: policy.Sampling{Temperature: 1, MaxNew: newTokens},
			Key: policy.Key{RunSeed: 3, Query: fmt.Sprint(i / 2), Rollout: i % 2}})
	}
	return out
}

// TestTenantsInOneBatch: eight sequences of each of three tenants decode in one batch. Two tenants have
// adapters, and one uses the base model. Each sequence has the same bits as alone in an engine of its own.
func TestTenantsInOneBatch(t *testing.T) {
	for name, c := range map[string]struct {
		base    func(t *testing.T) *model.Model
		targets []string // of the second adapter
		tokens  int
		alone   int // number of requests that are compared with an engine of their own
	}{
		"fp32":      {func(t *testing.T) *model.Model { return testModel(t, 1) }, []string{"q_proj", "down_proj"}, 20, 8},
		"bf16":      {func(t *testing.T) *model.Model { return testModelIn(t, 1, true) }, []string{"q_proj", "down_proj"}, 20, 8},
		"2 threads": {func(t *testing.T) *model.Model { return testModel(t, 2) }, []string{"q_proj", "down_proj"}, 20, 8},
		"windows":   {func(t *testing.T) *model.Model { return windowed(t, 20, 0, 30) }, []string{"v_proj"}, 20, 8},
		"mixture":   {func(t *testing.T) *model.Model { return mixtureModel(t, 1, false) }, []string{"k_proj", "o_proj"}, 20, 8},
		"quantised": {quantised, []string{"q_proj", "gate_proj"}, 4, 3},
	} {
		t.Run(name, func(t *testing.T) {
			base, reqs := c.base(t), eightRequests(c.tokens)
			first := []string{"q_proj", "k_proj", "v_proj", "o_proj"}
			models := []*model.Model{randomAdapters(t, base, 3, first...).Model(), base, randomAdapters(t, base, 5, c.targets...).Model()}
			e := testShared(t, base, Options{Slots: 24, Context: 160})
			var tenants []*Tenant
			for _, m := range models {
				tenants = append(tenants, join(t, e, m, TenantOptions{}))
			}
			got := together(t, e, reqs, tenants...)
			for i, m := range models {
				alone := testEngine(t, m, Options{Slots: 1, Context: 160})
				for j, r := range reqs[:c.alone] {
					want, err := alone.Generate(t.Context(), r)
					if err != nil {
						t.Fatal(err)
					}
					equal(t, fmt.Sprintf("tenant %d, request %d", i, j), got[i][j], want)
					equalRoutes(t, fmt.Sprintf("tenant %d, request %d", i, j), got[i][j].Routes, want.Routes)
				}
				if largest := slices.Max(slices.Collect(maps.Keys(tenants[i].Stats().Batches))); largest != 24 {
					t.Errorf("tenant %d: the largest batch had %d sequences, want 24", i, largest)
				}
				if next := got[(i+1)%3][0]; slices.Equal(got[i][0].LogProbs, next.LogProbs) {
					t.Errorf("tenants %d and %d have the same log-probs: their adapters have no effect", i, (i+1)%3)
				}
			}
		})
	}
}

// quantised returns a model whose weights stay quantised, as in its file.
func quantised(t *testing.T) *model.Model {
	t.Helper()
	src, err := weights.Open(golden.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	m, err := model.Load(t.Context(), dev, src, model.Options{Compute: torch.Float32, Quantised: true, MaxPosition: 160})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return m
}

// TestPrefixesAreTheTenantsOwn: keys and values depend on adapters, so a tenant never reuses another's prefix, neither a cached one nor one
// that is being computed. An update of one tenant's weights drops only its own prefixes.
func TestPrefixesAreTheTenantsOwn(t *testing.T) {
	base := testModel(t, 1)
	e := testShared(t, base, Options{Slots: 4})
	a, b := join(t, e, randomAdapters(t, base, 3).Model(), TenantOptions{}), join(t, e, randomAdapters(t, base, 5).Model(), TenantOptions{})
	r := policy.Request{Tokens: make([]int32, 70), Sampling: policy.Sampling{MaxNew: 3}}
	together(t, e, []policy.Request{r}, a, b)
	reused := func(when string, wantA, wantB int64) {
		t.Helper()
		if gotA, gotB := a.Stats().ReusedTokens, b.Stats().ReusedTokens; gotA != wantA || gotB != wantB {
			t.Fatalf("%s: the tenants reused %d and %d tokens, want %d and %d", when, gotA, gotB, wantA, wantB)
		}
	}
	reused("first request of both", 0, 0)
	together(t, e, []policy.Request{r}, a, b)
	reused("second request of both", 69, 69)
	if err := b.UpdateWeights(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	together(t, e, []policy.Request{r}, a, b)
	reused("after new weights of the second", 2*69, 69)
}

// TestUpdateUnderAnothersFlight: a tenant's weights may change while sequences of another tenant are in flight, and
// these sample the same as without the update. An update is refused while sequences of the same tenant are in flight.
func TestUpdateUnderAnothersFlight(t *testing.T) {
	base := testModel(t, 1)
	steady, learning := randomAdapters(t, base, 3), randomAdapters(t, base, 5)
	e := testShared(t, base, Options{Slots: 16})
	a, b := join(t, e, steady.Model(), TenantOptions{}), join(t, e, learning.Model(), TenantOptions{})
	r := policy.Request{Tokens: []int32{1, 2, 3}, Sampling: policy.Sampling{Temperature: 1, MaxNew: 140}}
	want, err := testEngine(t, steady.Model(), Options{Slots: 1}).Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	before := together(t, e, []policy.Request{r}, b)[0][0]

	release := hold(t, e)
	began := make(chan struct{}, r.Sampling.MaxNew)
	inFlight := r
	inFlight.OnToken = func(int32) { began <- struct{}{} }
	var got policy.Completion
	var asked sync.WaitGroup
	asked.Go(func() { got, err = a.Generate(context.Background(), inFlight) })
	waitFor(e, 1)
	if a.UpdateWeights(t.Context(), 1) == nil {
		t.Error("an update was accepted while sequences of the same tenant were in flight")
	}
	release()
	<-began
	scale := func(*torch.Scope) error { learning.Master().Tensor.Scale_(-1.5); return nil }
	if err := errors.Join(e.dev.Do(t.Context(), scale), b.UpdateWeights(t.Context(), 1)); err != nil {
		t.Fatal(err)
	}
	after := together(t, e, []policy.Request{r}, b)[0][0]
	if asked.Wait(); err != nil {
		t.Fatal(err)
	}
	equal(t, "in flight", got, want)
	fresh, err := testEngine(t, learning.Model(), Options{Slots: 1}).Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "new weights", after, fresh)
	if got.Version != 0 || before.Version != 0 || after.Version != 1 || a.Version() != 0 || after.LogProbs[0] == before.LogProbs[0] {
		t.Errorf("versions: got %d in flight, %d before the update, %d after it; want 0, 0, 1. First log-probs before and after it: %v, %v, want different ones",
			got.Version, before.Version, after.Version, before.LogProbs[0], after.LogProbs[0])
	}
}

// TestOverlap: with TenantOptions.Overlap an update is accepted while the tenant's own sequences are in flight. They continue and keep the
// version that they began with. Their keys and values are from both versions and are not reused. Other tenants' sequences do not change.
func TestOverlap(t *testing.T) {
	base := testModel(t, 1)
	learning, steady := randomAdapters(t, base, 3), randomAdapters(t, base, 5)
	e := testShared(t, base, Options{Slots: 16})
	a, b := join(t, e, learning.Model(), TenantOptions{Overlap: true}), join(t, e, steady.Model(), TenantOptions{Overlap: true})
	if a.Deterministic() {
		t.Error("a tenant with Overlap reports that it is deterministic")
	}
	r := policy.Request{Tokens: make([]int32, 40), Sampling: policy.Sampling{MaxNew: 100}}
	want, err := testEngine(t, steady.Model(), Options{Slots: 1}).Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	began := [2]chan struct{}{make(chan struct{}, r.Sampling.MaxNew), make(chan struct{}, r.Sampling.MaxNew)}
	var got [2]policy.Completion
	var asked sync.WaitGroup
	for i, tenant := range []*Tenant{a, b} {
		inFlight := r
		inFlight.OnToken = func(int32) { began[i] <- struct{}{} }
		asked.Go(func() {
			var err error
			if got[i], err = tenant.Generate(context.Background(), inFlight); err != nil {
				t.Error(err)
			}
		})
	}
	<-began[0]
	<-began[1]
	scale := func(*torch.Scope) error { learning.Master().Tensor.Scale_(-1.5); return nil }
	if err := errors.Join(e.dev.Do(t.Context(), scale), a.UpdateWeights(t.Context(), 1)); err != nil {
		t.Fatal(err)
	}
	asked.Wait()
	equal(t, "the other tenant", got[1], want)
	if got[0].Version != 0 || a.Version() != 1 || len(got[0].Tokens) != 100 {
		t.Errorf("got %d tokens of version %d and a tenant at version %d, want 100, 0 and 1", len(got[0].Tokens), got[0].Version, a.Version())
	}
	fresh, err := testEngine(t, learning.Model(), Options{Slots: 1}).Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "after new weights", together(t, e, []policy.Request{r}, a)[0][0], fresh)
}

// TestTenantLeaves: closing a tenant ends its sequences, and its adapters may be freed. Other
// tenants continue, and the next one to join gets its number.
func TestTenantLeaves(t *testing.T) {
	base := testModel(t, 1)
	leaving, staying := randomAdapters(t, base, 3), randomAdapters(t, base, 5)
	e := testShared(t, base, Options{Slots: 16})
	a, b := join(t, e, leaving.Model(), TenantOptions{}), join(t, e, staying.Model(), TenantOptions{})
	r := policy.Request{Tokens: make([]int32, 40), Sampling: policy.Sampling{Temperature: 1, MaxNew: 100}}
	release := hold(t, e)
	var got policy.Completion
	var asked sync.WaitGroup
	asked.Go(func() {
		if _, err := a.Generate(context.Background(), r); !errors.Is(err, policy.ErrClosed) {
			t.Errorf("a sequence of the closed tenant: got error %v, want policy.ErrClosed", err)
		}
	})
	asked.Go(func() {
		var err error
		if got, err = b.Generate(context.Background(), r); err != nil {
			t.Error(err)
		}
	})
	waitFor(e, 2)
	left := make(chan error)
	go func() { left <- a.Close(context.Background()) }()
	release()
	if err := errors.Join(<-left, leaving.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Generate(t.Context(), r); !errors.Is(err, policy.ErrClosed) {
		t.Errorf("a request of the closed tenant: got error %v, want policy.ErrClosed", err)
	}
	next := join(t, e, randomAdapters(t, base, 7).Model(), TenantOptions{})
	if next.number != a.number {
		t.Errorf("the new tenant has number %d, want the free one, %d", next.number, a.number)
	}
	asked.Wait()
	for _, tenant := range []*Tenant{b, next} {
		want, err := testEngine(t, tenant.model, Options{Slots: 1}).Generate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if tenant == next {
			got = together(t, e, []policy.Request{r}, next)[0][0]
		}
		equal(t, fmt.Sprint("tenant ", tenant.number), got, want)
	}
	e.mu.Lock()
	e.pages.verify(t)
	e.mu.Unlock()
}

// TestOnlyModelsOfTheBaseJoin: a model that does not share the engine's base weights cannot join.
func TestOnlyModelsOfTheBaseJoin(t *testing.T) {
	e := testShared(t, testModel(t, 1), Options{Slots: 1})
	if tenant, err := e.Join(t.Context(), randomModel(t, e.dev, denseConfig, false), TenantOptions{}); err == nil {
		t.Errorf("a model with other base weights joined as tenant %d, want an error", tenant.number)
	}
}
