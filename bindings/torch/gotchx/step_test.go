package gotchx_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// counted is a module that counts rows. It has step only if steps is set.
type counted struct {
	*gotchx.Module
	steps  bool
	rows   int64
	starts int // calls of step with the state of no tokens
}

func (c *counted) Steps() bool { return c.steps && c.Module.Steps() }

func (c *counted) Forward(s *torch.Scope, tokens, positions, segments *torch.Tensor) (*torch.Tensor, error) {
	c.rows += tokens.Numel()
	return c.Module.Forward(s, tokens, positions, segments)
}

func (c *counted) Step(s *torch.Scope, tokens, positions, state *torch.Tensor) (hidden, next *torch.Tensor, err error) {
	c.rows += tokens.Numel()
	if slices.Equal(state.Shape(), []int64{0}) && state.DType() == torch.Float32 {
		c.starts++
	}
	return c.Module.Step(s, tokens, positions, state)
}

// withStep loads testdata/step.pt with random weights.
func withStep(t *testing.T, steps bool) (m *model.Model, c *counted) {
	t.Helper()
	c = &counted{steps: steps}
	model.SetModuleOpener(func(s *torch.Scope, path string) (_ model.Module, err error) {
		c.Module, err = gotchx.OpenModule(s, path)
		return c, err
	})
	defer model.SetModuleOpener(openModule)
	dir := folderOf(t, "embedding", map[string][]int64{"embedding": {32, 16}, "place": {64, 16}, "qkv": {16, 48}})
	m, err := load(t, dir, "testdata/step.pt", "cpu")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	err = model.All(m).Restore(t.Context(), func(_ int64, dst []float32) error {
		for i := range dst {
			dst[i] = float32(rng.NormFloat64()) / 2
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, c
}

func sampler(t *testing.T, m *model.Model, opt local.Options) *local.Tenant {
	t.Helper()
	e, err := local.OpenTenant(t.Context(), m, opt, local.TenantOptions{Overlap: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

// stepRequest returns the i-th request. Prompts of consecutive requests begin alike.
func stepRequest(i int) policy.Request {
	return policy.Request{Tokens: []int32{5, 9, 7, int32(20 + i/2), 3, int32(i)}, Key: policy.Key{Query: "q", Rollout: i, Root: uint64(i)},
		Sampling: policy.Sampling{Temperature: 1, MaxNew: 10 + 3*i}}
}

func compare(t *testing.T, name string, got, want policy.Completion) {
	t.Helper()
	if !slices.Equal(got.Tokens, want.Tokens) || got.Finish != want.Finish || len(got.Tokens) == 0 {
		t.Fatalf("%s: %v, %v; want %v, %v", name, got.Tokens, got.Finish, want.Tokens, want.Finish)
	}
	for i, lp := range got.LogProbs {
		if math.Abs(float64(lp-want.LogProbs[i])) > 1e-5 {
			t.Errorf("%s, token %d: log-prob %v, want %v", name, i, lp, want.LogProbs[i])
		}
	}
}

// A module with step samples the same tokens with the same log-probs as without, and computes each token once.
func TestStepSamples(t *testing.T) {
	const sequences = 6
	sample := func(steps bool, opt local.Options) (all [sequences]policy.Completion, fed, rows int64) {
		m, c := withStep(t, steps)
		e := sampler(t, m, opt)
		var asked sync.WaitGroup
		for i := range all {
			asked.Go(func() {
				var err error
				if all[i], err = e.Generate(t.Context(), stepRequest(i)); err != nil {
					t.Error(err)
				}
			})
		}
		asked.Wait()
		for i, got := range all {
			fed += int64(len(stepRequest(i).Tokens) + len(got.Tokens) - 1) // the last token is not fed
		}
		return all, fed, c.rows
	}
	for _, opt := range []local.Options{{Slots: sequences}, {Slots: sequences, PassRows: 4}, {Slots: 2, NoPrefixes: true}} {
		want, fed, whole := sample(false, opt)
		got, _, rows := sample(true, opt)
		for i := range got {
			compare(t, fmt.Sprintf("%+v, sequence %d", opt, i), got[i], want[i])
		}
		if rows != fed || whole < 5*fed {
			t.Errorf("%+v: %d rows with step and %d without; want %d with step and far more without", opt, rows, whole, fed)
		}
	}
}

// A state is not used after the weights changed: the next token comes from the new weights, as without step.
func TestStepAfterUpdate(t *testing.T) {
	for _, published := range []bool{true, false} { // an update that is published but not announced yet, and one that is only announced
		sample := func(steps bool) (policy.Completion, int) {
			m, c := withStep(t, steps)
			e := sampler(t, m, local.Options{Slots: 1})
			update := func(*torch.Scope) error {
				m.Master.Tensor.Scale_(-1.5)
				if published {
					model.All(m).Publish()
					return nil
				}
				return e.UpdateWeights(context.Background(), 1)
			}
			r, sampled, ended := stepRequest(4), 0, make(chan error, 1)
			r.OnToken = func(int32) {
				if sampled++; sampled == 8 { // the update begins before the next pass
					began := make(chan struct{})
					go func() {
						ended <- m.Device.Do(context.Background(), func(s *torch.Scope) error { close(began); return update(s) })
					}()
					<-began
				}
			}
			got, err := e.Generate(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			return got, c.starts
		}
		want, _ := sample(false)
		got, starts := sample(true)
		compare(t, fmt.Sprintf("published: %v", published), got, want)
		if starts != 2 {
			t.Errorf("published: %v: %d sequences began without a state, want 2: at the prompt and after the update", published, starts)
		}
	}
}

// The memory of states is freed when their sequences end, and when the engine closes under sequences in flight.
func TestStepFreesStates(t *testing.T) {
	m, _ := withStep(t, true)
	allocated := func() int64 {
		memory, err := m.Device.Memory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return memory.Allocated
	}
	settles := func(name string, want int64) {
		t.Helper()
		got := allocated()
		for range 500 { // a state is freed shortly after Generate returns
			if got == want {
				return
			}
			time.Sleep(10 * time.Millisecond)
			got = allocated()
		}
		t.Errorf("%s: %d bytes are allocated, want %d", name, got, want)
	}
	generate := func(ctx context.Context, e *local.Tenant, r policy.Request) {
		if _, err := e.Generate(ctx, r); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
	opt := local.Options{Slots: 3}
	first := sampler(t, m, opt)
	generate(t.Context(), first, stepRequest(0)) // TorchScript allocates in its first calls
	first.Close(t.Context())
	without := allocated()

	e := sampler(t, m, opt)
	idle := allocated()
	var asked sync.WaitGroup
	for i := range 12 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := stepRequest(i)
		if i%3 == 0 {
			sampled := 0
			r.OnToken = func(int32) {
				if sampled++; sampled == 3 {
					cancel()
				}
			}
		}
		asked.Go(func() { generate(ctx, e, r) })
	}
	asked.Wait()
	settles("idle", idle)

	long := stepRequest(0)
	long.Sampling.MaxNew = 50
	began := make(chan struct{}, long.Sampling.MaxNew)
	long.OnToken = func(int32) { began <- struct{}{} }
	asked.Go(func() { e.Generate(context.Background(), long) })
	<-began
	e.Close(t.Context())
	asked.Wait()
	settles("closed", without)
}

// An error of step has its file, and the shapes.
func TestStepErrors(t *testing.T) {
	for _, c := range []struct {
		module string
		token  int32
		want   string
	}{
		{"faults", 0, "step returned float32 [1 2]; want hidden states, float32 [2 2]"},
		{"faults", 1, "step returned float64 [2 2]; want hidden states, float32 [2 2]"},
		{"faults", 2, "step returned hidden states, float32 [2 2], that are not finite"},
		{"faults", 3, "step(tokens, positions, state) of int64 [2] and a state float32 [0]: "},
		{"single", 0, "step(tokens, positions, state) of int64 [2] and a state float32 [0]: it did not return a tuple of two tensors"},
	} {
		path := "testdata/" + c.module + ".pt"
		m, err := load(t, folderOf(t, "embedding", map[string][]int64{"embedding": {4, 2}, "bias": {2}}), path, "cpu")
		if err != nil {
			t.Fatal(err)
		}
		r := policy.Request{Tokens: []int32{c.token, 1}, Sampling: policy.Sampling{MaxNew: 4}}
		if _, err := sampler(t, m, local.Options{Slots: 1}).Generate(t.Context(), r); err == nil || !strings.Contains(err.Error(), path+": "+c.want) {
			t.Errorf("%s, token %d: %v; want %s", c.module, c.token, err, c.want)
		}
	}
}
