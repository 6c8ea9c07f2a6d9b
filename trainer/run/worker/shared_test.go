package worker

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks/rankstest"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestSharedWeightsAreKeptWhole: ranks that compute in bf16 have a share of the fp32 weights each. The weights that rank 0 writes
// are complete nevertheless: the reference of a KL term and the state after a cold start, both before and after the agent is frozen.
func TestSharedWeightsAreKeptWhole(t *testing.T) { rankstest.Pass(t, 2, "keep", t.TempDir()) }

// TestRank runs in one of the processes that TestSharedWeightsAreKeptWhole starts. Ranks get no
// orders in this test, so each runs the code of rank 0.
func TestRank(t *testing.T) {
	rank := rankstest.Join(t)
	ctx := t.Context()
	device, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = device.Close() })
	m, err := model.Random(ctx, device, arch.Config{Family: arch.Qwen3, VocabSize: 96, Hidden: 16, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 4, FFN: 24,
		RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 64, Tied: true}, 1, model.Options{Compute: torch.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	whole := make([]float32, m.Layout.Numel)
	if err := m.Master.Read(ctx, 0, whole); err != nil {
		t.Fatal(err)
	}
	own, err := learner.New(ctx, m, model.All(m), learner.Options{Group: rank.Group})
	if err != nil {
		t.Fatal(err)
	}
	lead := (*launch.RankGroup)(nil).NewLearner(own, learner.Adam{})
	w := &Worker{common: &common{learner: lead}, parts: &assemble.AgentParts{Model: m, Learner: lead, Params: launch.RankedParams{Params: model.All(m), Learner: lead}}}
	dir := filepath.Join(rank.Dir, string(rune('0'+rank.Group.Rank())))
	kept := archive.New(archive.Options{Dir: dir, Agent: "researcher", DType: weights.F32}, onlyMember(t, store.Options{Run: "test"}), parameters{w})
	wantKept := func(when string) {
		t.Helper()
		if err := kept.KeepReference(ctx); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		coldStart, err := kept.SaveColdStart(ctx, archive.ColdStart{Updates: 1, Over: true})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if rank.Group.Rank() > 0 { // only rank 0 has the shares of all
			return
		}
		folder, err := kept.Reference()
		if err != nil {
			t.Fatal(err)
		}
		wantTensors(t, when, folder, m.Layout.Tensors(), whole)
		saved := make([]float32, len(whole))
		f, err := archive.OpenOptimizer(coldStart)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Read("master", 0, saved); err != nil || !slices.Equal(saved, whole) {
			t.Errorf("%s: the saved state of the cold start does not have the model's weights; error %v", when, err)
		}
	}
	wantKept("training")
	if err := w.parts.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	wantKept("frozen")
}

// wantTensors checks that the tensors in a folder equal the flat buffer `whole`.
func wantTensors(t *testing.T, when, folder string, tensors []arch.Tensor, whole []float32) {
	t.Helper()
	src, err := weights.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for _, tensor := range tensors {
		got := make([]float32, tensor.Numel())
		if err := src.Read(tensor.Name, 0, tensor.Shape[0], got); err != nil || !slices.Equal(got, whole[tensor.Offset:][:len(got)]) {
			t.Errorf("%s: tensor %s of the reference does not have the model's weights; error %v", when, tensor.Name, err)
		}
	}
}
