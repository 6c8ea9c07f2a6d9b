package local

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// near reports whether log-probs from passes with different numbers of rows agree: bit for bit on a CPU, within 1e-4 on a GPU.
func near(a, b float32, device string) bool {
	return a == b || device != "cpu" && math.Abs(float64(a-b)) < 1e-4
}

// oddTokens is a constraint that allows only odd tokens, `times` times. After that it allows no token, or fails with `fails` if that is
// set.
type oddTokens struct {
	times int
	fails error
	seen  []int32
}

func (o *oddTokens) Allowed() ([]int32, error) {
	if o.times--; o.times < 0 {
		return make([]int32, 4), o.fails
	}
	return []int32{-0x55555556, -0x55555556, -0x55555556, -0x55555556}, nil
}

func (o *oddTokens) Accept(id int32) error { o.seen = append(o.seen, id); return nil }

// TestConstraint: a sequence samples only tokens that its constraint allows, and log-probs are finite. Other sequences in the same pass
// sample the same tokens as without it. A constraint that allows no token or fails ends its own sequence with an error.
func TestConstraint(t *testing.T) { cudatest.Each(t, testConstraint) }

func testConstraint(t *testing.T, device string) {
	m := testModelOn(t, device, 1, false)
	e := testEngine(t, m, Options{Slots: 4})
	request := func(rollout int, c policy.Constraint) policy.Request {
		return policy.Request{Tokens: []int32{1, 2, 3}, Sampling: policy.Sampling{Temperature: 1, MaxNew: 24}, Key: policy.Key{RunSeed: 3, Rollout: rollout}, Constraint: c}
	}
	alone, err := e.Generate(t.Context(), request(1, nil))
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("it failed")
	constraints := []policy.Constraint{&oddTokens{times: 24}, nil, &oddTokens{times: 5}, &oddTokens{times: 5, fails: failed}}
	outs, errs := make([]policy.Completion, 4), make([]error, 4)
	var all sync.WaitGroup
	for i, c := range constraints {
		all.Go(func() { outs[i], errs[i] = e.Generate(context.Background(), request(i, c)) })
	}
	all.Wait()
	if errs[0] != nil || len(outs[0].Tokens) != 24 {
		t.Fatalf("constrained sequence: got %v, error %v; want 24 tokens", outs[0], errs[0])
	}
	for i, id := range outs[0].Tokens {
		if id%2 != 1 || id != constraints[0].(*oddTokens).seen[i] || !(outs[0].LogProbs[i] <= 0) || math.IsInf(float64(outs[0].LogProbs[i]), 0) {
			t.Errorf("token %d: got %d with log-prob %v, want an odd token with a finite log-prob", i, id, outs[0].LogProbs[i])
		}
	}
	for i := range alone.Tokens {
		if errs[1] != nil || outs[1].Tokens[i] != alone.Tokens[i] || !near(outs[1].LogProbs[i], alone.LogProbs[i], device) {
			t.Errorf("token %d of the unconstrained sequence: got %d, want %d as when sampled alone; error %v", i, outs[1].Tokens[i], alone.Tokens[i], errs[1])
		}
	}
	if errs[2] == nil || !errors.Is(errs[3], failed) {
		t.Errorf("no token allowed: got error %v, want one; failed constraint: got error %v, want %v", errs[2], errs[3], failed)
	}
	if _, err := e.Generate(t.Context(), request(5, nil)); err != nil {
		t.Errorf("a request after the failed ones: %v", err)
	}
}
