package local

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// TestInputsOfNothing: a pass with fewer rows than its graph is filled up with rows that belong to no slot.
func TestInputsOfNothing(t *testing.T) {
	a := &sequence{tenant: &Tenant{number: 1}, state: slotState{slot: 4, filled: 2, cached: &cachedSeq{recurrence: recurrence{state: 3}}}, tokens: []int32{7, 8, 9}}
	b := &sequence{tenant: &Tenant{}, state: slotState{slot: 1, cached: &cachedSeq{}}, tokens: []int32{5}}
	plan := planBatch([]*sequence{a, b}, 8)
	if !plan.decodes() {
		t.Error("a pass of one token for each of two sequences is not a decode pass")
	}
	want := []int32{5, 9, 0, 0, 1, 4, noSlot, noSlot, 0, 2, 0, 0, 1, 3, 0, 0, 0, 1, noTenant, noTenant, 0, 3, noState, noState}
	if got := plan.inputs(4); !slices.Equal(got, want) {
		t.Errorf("inputs %v, want %v", got, want)
	}
	b.tokens = []int32{5, 6}
	if planBatch([]*sequence{a, b}, 8).decodes() {
		t.Error("a pass with a prompt of two tokens is a decode pass")
	}
}

// TestPartsOfAPass: a pass of prompts and decoding sequences is split into two parts with the same rows. When the parts are joined again,
// their tokens and experts are in one order.
func TestPartsOfAPass(t *testing.T) {
	decoding := func(slot int) *sequence {
		return &sequence{tenant: &Tenant{}, state: slotState{slot: slot, filled: 1, cached: &cachedSeq{}}, tokens: []int32{5, 6}}
	}
	prompt := func(slot, tokens int) *sequence {
		return &sequence{tenant: &Tenant{}, state: slotState{slot: slot, cached: &cachedSeq{}}, tokens: make([]int32, tokens)}
	}
	long, a, short, b := prompt(0, 9), decoding(1), prompt(2, 3), decoding(3)
	long.tenant.number, a.tenant.number = 1, 2 // rows are sorted by tenant
	plan := planBatch([]*sequence{short, long, a, b}, 12)
	parts := plan.parts()
	if len(parts) != 2 || !parts[0].decodes() || parts[1].decodes() {
		t.Fatalf("got parts %+v, want a part that decodes and a part of prompts", parts)
	}
	if !slices.Equal(parts[0].ready, []*sequence{b, a}) || !slices.Equal(parts[0].last, []int32{0, 1}) {
		t.Errorf("part that decodes: got %+v", parts[0])
	}
	if !slices.Equal(parts[1].ready, []*sequence{short}) || !slices.Equal(parts[1].last, []int32{2}) || parts[1].rows != 10 || len(parts[1].work) != 2 {
		t.Errorf("part of prompts: got %+v", parts[1])
	}
	parts[0].routes, parts[1].routes = []uint16{1, 2}, []uint16{3, 4}
	plan.merge(parts)
	if plan.rows != 12 || !slices.Equal(plan.ready, []*sequence{b, a, short}) || !slices.Equal(plan.routes, []uint16{1, 2, 3, 4}) ||
		!slices.Equal(plan.work, []work{{b, 1}, {a, 1}, {short, 3}, {long, 7}}) {
		t.Errorf("joined parts: got %+v", plan)
	}
	if one := planBatch([]*sequence{a, b}, 9).parts(); len(one) != 1 || !one[0].decodes() {
		t.Errorf("parts of a pass that only decodes: got %+v, want one", one)
	}
}

// compareFirstTurns compares first turns on two devices, which may round differently. Log-probs must agree up to the first token that
// differs, and nine of ten turns must have equal tokens.
func compareFirstTurns(t *testing.T, got, want [][2]policy.Completion) {
	t.Helper()
	same := 0
	for i := range want {
		got, want := got[i][0], want[i][0]
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
	if same < len(want)*9/10 {
		t.Errorf("%d of %d completions are equal, want 90%%", same, len(want))
	}
}

// TestGPU: conversations on a GPU agree with conversations on the CPU, with and without graphs.
func TestGPU(t *testing.T) {
	devices := cudatest.Devices(t)
	if len(devices) < 2 {
		t.Skip("no GPU")
	}
	reqs := requests()
	want := run(t, testEngine(t, testModel(t, 1), Options{Slots: 16}), reqs, 16, inOrder(len(reqs)))
	for _, c := range []Options{{Slots: 16}, {Slots: 6}, {Slots: 16, NoGraphs: true}} {
		t.Run(fmt.Sprintf("%d slots, NoGraphs %v", c.Slots, c.NoGraphs), func(t *testing.T) {
			e := testEngine(t, testModelOn(t, devices[1], 1, false), c)
			compareFirstTurns(t, run(t, e, reqs, 16, inOrder(len(reqs))), want)
			if captured := len(e.engine.executor.graphs) > 0; captured == c.NoGraphs || !allCaptured(e) {
				t.Errorf("got graphs %v, want some: %v", e.engine.executor.graphs, !c.NoGraphs)
			}
		})
	}
}

// allCaptured reports whether every pass that the engine tried to capture was captured.
func allCaptured(e *Tenant) bool {
	for _, g := range e.engine.executor.graphs {
		if g == nil {
			return false
		}
	}
	return true
}

// TestPassesThatCannotBeCaptured: if a pass cannot be captured, as on a CPU, passes of its size
// run without a graph. The engine notes it once for each size.
func TestPassesThatCannotBeCaptured(t *testing.T) {
	reqs := requests()
	opt := Options{Slots: 16, PassRows: 20} // some passes have two parts: prompts, and sequences that decode
	want := run(t, testEngine(t, testModel(t, 1), opt), reqs, 16, inOrder(len(reqs)))
	var notes []string
	opt.Note = func(text string) { notes = append(notes, text) }
	e := testEngine(t, testModel(t, 1), opt)
	e.engine.executor.captures = true
	for range 2 {
		if got := run(t, e, reqs, 16, inOrder(len(reqs))); !reflect.DeepEqual(got, want) {
			t.Error("completions differ from an engine without graphs")
		}
	}
	if len(notes) != len(e.engine.executor.graphs) || len(notes) < 2 {
		t.Errorf("got %d notes %q, want one for each of %d sizes, and 2 or more", len(notes), notes, len(e.engine.executor.graphs))
	}
	for size, g := range e.engine.executor.graphs {
		said := fmt.Sprintf("passes of %d rows", size)
		if g != nil || !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, said) && strings.Contains(n, "on GPUs alone") }) {
			t.Errorf("size %d: captured %v, want false; no note of it in %q", size, g != nil, notes)
		}
	}
}

// TestManyExpertsAreNotCaptured: a pass with many rows of experts is not captured, because it waits for the number of rows of each expert.
// Smaller passes of the same engine are captured.
func TestManyExpertsAreNotCaptured(t *testing.T) {
	devices := cudatest.Devices(t)
	if len(devices) < 2 {
		t.Skip("no GPU")
	}
	var notes []string
	e := testEngine(t, mixtureModelOn(t, devices[1], 1, false), Options{Slots: 256, CacheTokens: 4096, Note: func(text string) { notes = append(notes, text) }})
	err := e.engine.dev.Do(t.Context(), func(s *torch.Scope) error {
		if e.engine.executor.graphFor(s, 200) != nil {
			t.Error("a pass with 600 rows of experts was captured")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	reqs := requests()
	run(t, e, reqs, 4, inOrder(len(reqs)))
	if len(notes) > 0 || len(e.engine.executor.graphs) == 0 || !allCaptured(e) {
		t.Errorf("small passes: got graphs %v and notes %q, want graphs only", e.engine.executor.graphs, notes)
	}
}

// TestTenantsComeAndGo: on every device a tenant samples the same as alone in an engine, with and without graphs. This holds after
// another tenant has joined, which makes the engine capture its passes again, and after one has left.
func TestTenantsComeAndGo(t *testing.T) {
	reqs := requests()
	for _, device := range cudatest.Devices(t) {
		for _, plain := range []bool{false, true} {
			if plain && device == "cpu" {
				continue // passes are not captured on a CPU
			}
			t.Run(fmt.Sprintf("%s, NoGraphs %v", device, plain), func(t *testing.T) {
				base := testModelOn(t, device, 1, false)
				opt := Options{Slots: 16, NoGraphs: plain}
				a, b := randomAdapters(t, base, 3).Model(), randomAdapters(t, base, 5, "q_proj", "down_proj").Model()
				wantA, wantB := run(t, testEngine(t, a, opt), reqs, 8, inOrder(len(reqs))), run(t, testEngine(t, b, opt), reqs, 8, inOrder(len(reqs)))
				e := testShared(t, base, opt)
				first := join(t, e, a, TenantOptions{})
				compareFirstTurns(t, run(t, first, reqs, 8, inOrder(len(reqs))), wantA)
				second := join(t, e, b, TenantOptions{})
				var gotA [][2]policy.Completion
				var asked sync.WaitGroup
				asked.Go(func() { gotA = run(t, first, reqs, 8, inOrder(len(reqs))) })
				compareFirstTurns(t, run(t, second, reqs, 8, inOrder(len(reqs))), wantB)
				asked.Wait()
				compareFirstTurns(t, gotA, wantA)
				if err := first.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				compareFirstTurns(t, run(t, second, reqs, 8, inOrder(len(reqs))), wantB)
			})
		}
	}
}
