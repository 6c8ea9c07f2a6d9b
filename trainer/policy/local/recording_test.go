package local

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/cuda/cudatest"
)

// A pass of fewer rows than its recording is filled up with rows of no slot.
func TestInputsOfNothing(t *testing.T) {
	a := &sequence{tenant: &Tenant{number: 1}, flight: flight{slot: 4, filled: 2}, tokens: []int32{7, 8, 9}}
	b := &sequence{tenant: &Tenant{}, flight: flight{slot: 1}, tokens: []int32{5}}
	plan := planBatch([]*sequence{a, b}, 8)
	if !plan.decodes() {
		t.Error("two newest tokens are no decode pass")
	}
	want := []int32{5, 9, 0, 0, 1, 4, noSlot, noSlot, 0, 2, 0, 0, 1, 3, 0, 0, 0, 1, noTenant, noTenant}
	if got := plan.inputs(4); !slices.Equal(got, want) {
		t.Errorf("inputs %v, want %v", got, want)
	}
	b.tokens = []int32{5, 6}
	if planBatch([]*sequence{a, b}, 8).decodes() {
		t.Error("a prompt of two tokens is taken for a decode pass")
	}
}

// On a GPU conversations go as on the processor, with recorded passes and without. Products round otherwise there: a few
// tokens may turn out another one, and nothing after such a token is compared.
func TestGPU(t *testing.T) {
	devices := cudatest.Devices(t)
	if len(devices) < 2 {
		t.Skip("no GPU")
	}
	reqs := requests()
	want := run(t, testEngine(t, testModel(t, 1), Options{Slots: 16}), reqs, 16, inOrder(len(reqs)))
	for _, c := range []Options{{Slots: 16}, {Slots: 6}, {Slots: 16, NoRecordings: true}} {
		t.Run(fmt.Sprintf("%d slots, NoRecordings %v", c.Slots, c.NoRecordings), func(t *testing.T) {
			e := testEngine(t, testModelOn(t, devices[1], 1, false), c)
			same := 0
			for i, got := range run(t, e, reqs, 16, inOrder(len(reqs))) {
				got, want := got[0], want[i][0]
				n := 0
				for n < min(len(got.Tokens), len(want.Tokens)) && got.Tokens[n] == want.Tokens[n] {
					if d := math.Abs(float64(got.LogProbs[n] - want.LogProbs[n])); d > 1e-4 {
						t.Errorf("request %d, token %d: log-probs differ by %g", i, n, d)
					}
					n++
				}
				if n == len(want.Tokens) && n == len(got.Tokens) {
					same++
				}
			}
			if same < len(reqs)*9/10 {
				t.Errorf("%d of %d completions are the processor's", same, len(reqs))
			}
			if recorded := len(e.engine.recordings) > 0; recorded == c.NoRecordings {
				t.Errorf("%d recordings", len(e.engine.recordings))
			}
		})
	}
}
