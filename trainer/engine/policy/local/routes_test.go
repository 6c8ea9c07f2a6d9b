package local

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// mixtureModel returns a model with experts in its first and third layer.
func mixtureModel(t *testing.T, threads int, half bool) *model.Model {
	t.Helper()
	return mixtureModelOn(t, "cpu", threads, half)
}

func mixtureModelOn(t *testing.T, device string, threads int, half bool) *model.Model {
	t.Helper()
	c := denseConfig
	c.Family, c.Layers = arch.Qwen3MoE, 3
	c.Mixture = &arch.Mixture{Experts: 7, PerToken: 3, FFN: 40, Normalise: true, Dense: []int{1}, Step: 1}
	return testModelOf(t, c, device, threads, half)
}

// TestRoutesAreTheTokensOwn: a completion has the experts of every token but the newest, and they equal the experts of training's forward
// pass. Experts, tokens and log-probs do not depend on other sequences in flight, shared prefixes, threads or the size of a pass.
func TestRoutesAreTheTokensOwn(t *testing.T) {
	for _, half := range []bool{false, true} {
		t.Run(map[bool]string{false: "fp32", true: "bf16"}[half], func(t *testing.T) { testRoutes(t, half) })
	}
}

func testRoutes(t *testing.T, half bool) {
	reqs := requests()
	m := mixtureModel(t, 1, half)
	want := run(t, testEngine(t, m, Options{Slots: 16, NoPrefixes: true}), reqs, 1, inOrder(len(reqs)))
	for i, r := range reqs {
		for turn, c := range want[i] {
			tokens := len(r.Tokens) + len(c.Tokens) - 1
			if turn == 1 {
				tokens += len(want[i][0].Tokens) + 3
			}
			if len(c.Routes) != tokens*m.Config.RouteWidth() || m.Config.RouteWidth() != 6 {
				t.Fatalf("request %d turn %d: %d experts for %d tokens, want 6 for each", i, turn, len(c.Routes), tokens)
			}
		}
	}
	if !half {
		for _, i := range []int{0, 23} {
			all := slices.Concat(reqs[i].Tokens, want[i][0].Tokens)
			equalRoutes(t, fmt.Sprint("training, request ", i), want[i][0].Routes, trainingRoutes(t, m, all[:len(all)-1]))
		}
	}
	for _, c := range []struct {
		name     string
		threads  int
		opt      Options
		inFlight int
	}{
		{"16 in flight, prefixes shared", 1, Options{Slots: 16}, 16},
		{"room for one sequence", 1, Options{Slots: 16, CacheTokens: 160}, 16},
		{"fewer slots than sequences, prefill in pieces, 2 threads", 2, Options{Slots: 5, PassRows: 20}, 16},
	} {
		got := run(t, testEngine(t, mixtureModel(t, c.threads, half), c.opt), reqs, c.inFlight, inOrder(len(reqs)))
		for i := range want {
			for turn := range want[i] {
				what := fmt.Sprintf("%s: request %d turn %d", c.name, i, turn)
				equal(t, what, got[i][turn], want[i][turn])
				equalRoutes(t, what, got[i][turn].Routes, want[i][turn].Routes)
			}
		}
	}
}

// TestRoutesAfterNewWeights: after an update, all tokens of a turn have the experts that the new weights choose.
func TestRoutesAfterNewWeights(t *testing.T) {
	m := mixtureModel(t, 1, false)
	e := testEngine(t, m, Options{Slots: 2})
	r := policy.Request{Tokens: []int32{1, 2, 3, 4, 5, 6}, Sampling: policy.Sampling{MaxNew: 4}}
	before, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Device.Do(t.Context(), func(*torch.Scope) error { m.Master.Tensor.Scale_(-1); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := e.UpdateWeights(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	after, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(r.Tokens, after.Tokens)
	equalRoutes(t, "new weights", after.Routes, trainingRoutes(t, m, all[:len(all)-1]))
	if slices.Equal(before.Routes, after.Routes) {
		t.Error("the experts are the same before and after the update")
	}
}

// trainingRoutes returns the experts that training's forward pass chooses for a sequence, in the layout of a completion.
func trainingRoutes(t *testing.T, m *model.Model, ids []int32) []uint16 {
	t.Helper()
	b := &batch{rows: len(ids)}
	err := m.Device.Do(t.Context(), func(s *torch.Scope) error {
		n := int64(len(ids))
		pos := make([]int32, n)
		for i := range pos {
			pos[i] = int32(i)
		}
		chosen := routes(s, &m.Config, len(ids))
		m.Forward(s, model.Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2), Routes: &model.Routes{Chosen: chosen}})
		b.readRoutes(chosen)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.routes
}

func equalRoutes(t *testing.T, what string, got, want []uint16) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s:\n got experts %v\nwant         %v", what, got, want)
	}
}
