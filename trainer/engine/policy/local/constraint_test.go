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

// near compares log-probs of passes with other rows, which on a CPU have the same bits.
func near(a, b float32, device string) bool {
	return a == b || device != "cpu" && math.Abs(float64(a-b)) < 1e-4
}

// odd allows odd tokens alone, as often as it is asked; then none, or it fails.
type odd struct {
	times int
	fails error
	seen  []int32
}

func (o *odd) Allowed() ([]int32, error) {
	if o.times--; o.times < 0 {
		return make([]int32, 4), o.fails
	}
	return []int32{-0x55555556, -0x55555556, -0x55555556, -0x55555556}, nil
}

func (o *odd) Accept(id int32) error { o.seen = append(o.seen, id); return nil }

// TestConstraint: a sequence has the tokens that its constraint allows, with their log-probs among them; others in the same pass are as
// they are alone, and a constraint that comes to nothing ends its own sequence.
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
	constraints := []policy.Constraint{&odd{times: 24}, nil, &odd{times: 5}, &odd{times: 5, fails: failed}}
	outs, errs := make([]policy.Completion, 4), make([]error, 4)
	var all sync.WaitGroup
	for i, c := range constraints {
		all.Go(func() { outs[i], errs[i] = e.Generate(context.Background(), request(i, c)) })
	}
	all.Wait()
	if errs[0] != nil || len(outs[0].Tokens) != 24 {
		t.Fatalf("%v %v", outs[0], errs[0])
	}
	for i, id := range outs[0].Tokens {
		if id%2 != 1 || id != constraints[0].(*odd).seen[i] || !(outs[0].LogProbs[i] <= 0) || math.IsInf(float64(outs[0].LogProbs[i]), 0) {
			t.Errorf("token %d is %d with log-prob %v", i, id, outs[0].LogProbs[i])
		}
	}
	for i := range alone.Tokens {
		if errs[1] != nil || outs[1].Tokens[i] != alone.Tokens[i] || !near(outs[1].LogProbs[i], alone.LogProbs[i], device) {
			t.Errorf("token %d beside constrained ones: %d, alone %d, %v", i, outs[1].Tokens[i], alone.Tokens[i], errs[1])
		}
	}
	if errs[2] == nil || !errors.Is(errs[3], failed) {
		t.Errorf("%v, %v", errs[2], errs[3])
	}
	if _, err := e.Generate(t.Context(), request(5, nil)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
