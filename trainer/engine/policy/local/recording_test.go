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

// A pass of fewer rows than its recording is filled up with rows of no slot.
func TestInputsOfNothing(t *testing.T) {
	a := &sequence{tenant: &Tenant{number: 1}, flight: flight{slot: 4, filled: 2, line: &line{recurrence: recurrence{state: 3}}}, tokens: []int32{7, 8, 9}}
	b := &sequence{tenant: &Tenant{}, flight: flight{slot: 1, line: &line{}}, tokens: []int32{5}}
	plan := planBatch([]*sequence{a, b}, 8)
	if !plan.decodes() {
		t.Error("two newest tokens are no decode pass")
	}
	want := []int32{5, 9, 0, 0, 1, 4, noSlot, noSlot, 0, 2, 0, 0, 1, 3, 0, 0, 0, 1, noTenant, noTenant, 0, 3, noState, noState}
	if got := plan.inputs(4); !slices.Equal(got, want) {
		t.Errorf("inputs %v, want %v", got, want)
	}
	b.tokens = []int32{5, 6}
	if planBatch([]*sequence{a, b}, 8).decodes() {
		t.Error("a prompt of two tokens is taken for a decode pass")
	}
}

// The parts of a pass keep the rows of each sequence, and put together they have their tokens and experts in one order.
func TestPartsOfAPass(t *testing.T) {
	decoding := func(slot int) *sequence {
		return &sequence{tenant: &Tenant{}, flight: flight{slot: slot, filled: 1, line: &line{}}, tokens: []int32{5, 6}}
	}
	prompt := func(slot, tokens int) *sequence {
		return &sequence{tenant: &Tenant{}, flight: flight{slot: slot, line: &line{}}, tokens: make([]int32, tokens)}
	}
	long, a, short, b := prompt(0, 9), decoding(1), prompt(2, 3), decoding(3)
	long.tenant.number, a.tenant.number = 1, 2 // rows are sorted by tenant
	plan := planBatch([]*sequence{short, long, a, b}, 12)
	parts := plan.parts()
	if len(parts) != 2 || !parts[0].decodes() || parts[1].decodes() {
		t.Fatalf("parts %+v", parts)
	}
	if !slices.Equal(parts[0].ready, []*sequence{b, a}) || !slices.Equal(parts[0].last, []int32{0, 1}) {
		t.Errorf("decoding: %+v", parts[0])
	}
	if !slices.Equal(parts[1].ready, []*sequence{short}) || !slices.Equal(parts[1].last, []int32{2}) || parts[1].rows != 10 || len(parts[1].work) != 2 {
		t.Errorf("prompts: %+v", parts[1])
	}
	parts[0].routes, parts[1].routes = []uint16{1, 2}, []uint16{3, 4}
	plan.become(parts)
	if plan.rows != 12 || !slices.Equal(plan.ready, []*sequence{b, a, short}) || !slices.Equal(plan.routes, []uint16{1, 2, 3, 4}) ||
		!slices.Equal(plan.work, []work{{b, 1}, {a, 1}, {short, 3}, {long, 7}}) {
		t.Errorf("together: %+v", plan)
	}
	if one := planBatch([]*sequence{a, b}, 9).parts(); len(one) != 1 || !one[0].decodes() {
		t.Errorf("parts of a pass that only decodes: %+v", one)
	}
}

// alike compares first turns on devices that round otherwise: of a few, one token may turn out another, and nothing after it is compared.
func alike(t *testing.T, got, want [][2]policy.Completion) {
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
		t.Errorf("%d of %d completions are the same", same, len(want))
	}
}

// On a GPU conversations go as on the processor, with recorded passes and without.
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
			alike(t, run(t, e, reqs, 16, inOrder(len(reqs))), want)
			if recorded := len(e.engine.recordings) > 0; recorded == c.NoRecordings || !allRecorded(e) {
				t.Errorf("recordings %v", e.engine.recordings)
			}
		})
	}
}

// allRecorded says whether no recording of an engine has failed.
func allRecorded(e *Tenant) bool {
	for _, r := range e.engine.recordings {
		if r == nil {
			return false
		}
	}
	return true
}

// Where a pass cannot be recorded, as on any CPU, it and those of its size run as they are, and the engine says so once a size.
func TestPassesThatCannotBeRecorded(t *testing.T) {
	reqs := requests()
	opt := Options{Slots: 16, PassRows: 20} // prompts go on beside sequences that decode, in a pass of two parts
	want := run(t, testEngine(t, testModel(t, 1), opt), reqs, 16, inOrder(len(reqs)))
	var notes []string
	opt.Note = func(text string) { notes = append(notes, text) }
	e := testEngine(t, testModel(t, 1), opt)
	e.engine.records = true
	for range 2 {
		if got := run(t, e, reqs, 16, inOrder(len(reqs))); !reflect.DeepEqual(got, want) {
			t.Error("other completions")
		}
	}
	if len(notes) != len(e.engine.recordings) || len(notes) < 2 {
		t.Errorf("notes %q of %d sizes", notes, len(e.engine.recordings))
	}
	for size, r := range e.engine.recordings {
		said := fmt.Sprintf("passes of %d rows", size)
		if r != nil || !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, said) && strings.Contains(n, "on GPUs alone") }) {
			t.Errorf("size %d: recorded %v, notes %q", size, r != nil, notes)
		}
	}
}

// Passes with many rows of experts are not recorded, since those wait for their numbers; smaller ones of the same engine are.
func TestManyExpertsAreNotRecorded(t *testing.T) {
	devices := cudatest.Devices(t)
	if len(devices) < 2 {
		t.Skip("no GPU")
	}
	var notes []string
	e := testEngine(t, mixtureModelOn(t, devices[1], 1, false), Options{Slots: 256, CacheTokens: 4096, Note: func(text string) { notes = append(notes, text) }})
	err := e.engine.dev.Do(t.Context(), func(s *torch.Scope) error {
		if e.engine.recordingOf(s, 200) != nil {
			t.Error("600 rows of experts were recorded")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	reqs := requests()
	run(t, e, reqs, 4, inOrder(len(reqs)))
	if len(notes) > 0 || len(e.engine.recordings) == 0 || !allRecorded(e) {
		t.Errorf("recordings %v, notes %q", e.engine.recordings, notes)
	}
}

// On every device tenants have what they have alone, with recorded passes and without, also after another has joined, for whom passes are
// recorded anew, and after one has left.
func TestTenantsComeAndGo(t *testing.T) {
	reqs := requests()
	for _, device := range cudatest.Devices(t) {
		for _, plain := range []bool{false, true} {
			if plain && device == "cpu" {
				continue // nothing is recorded there
			}
			t.Run(fmt.Sprintf("%s, NoRecordings %v", device, plain), func(t *testing.T) {
				base := testModelOn(t, device, 1, false)
				opt := Options{Slots: 16, NoRecordings: plain}
				a, b := adapted(t, base, 3).Model(), adapted(t, base, 5, "q_proj", "down_proj").Model()
				wantA, wantB := run(t, testEngine(t, a, opt), reqs, 8, inOrder(len(reqs))), run(t, testEngine(t, b, opt), reqs, 8, inOrder(len(reqs)))
				e := testShared(t, base, opt)
				first := join(t, e, a, Terms{})
				alike(t, run(t, first, reqs, 8, inOrder(len(reqs))), wantA)
				second := join(t, e, b, Terms{})
				var gotA [][2]policy.Completion
				var asked sync.WaitGroup
				asked.Go(func() { gotA = run(t, first, reqs, 8, inOrder(len(reqs))) })
				alike(t, run(t, second, reqs, 8, inOrder(len(reqs))), wantB)
				asked.Wait()
				alike(t, gotA, wantA)
				if err := first.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				alike(t, run(t, second, reqs, 8, inOrder(len(reqs))), wantB)
			})
		}
	}
}
