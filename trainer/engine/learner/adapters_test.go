package learner

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// TestGoldenAdapterSteps trains every golden adapter for five steps: losses, gradient norms, and the adapters afterwards. The
// base does not change.
func TestGoldenAdapterSteps(t *testing.T) {
	dirs := golden.Adapters(t)
	for _, dir := range dirs {
		for _, device := range cudatest.Devices(t) {
			t.Run(filepath.Base(dir)+"/"+device, func(t *testing.T) { adapterSteps(t, dir, device, ranks.Solo{}) })
		}
	}
	golden.Count("lora/adamw", len(dirs))
}

// openAdapter opens a golden adapter and its base.
func openAdapter(t *testing.T, dir, device string) (base *model.Model, a *model.Adapters, read *weights.Adapter) {
	t.Helper()
	base = loadModel(t, golden.Base(t, dir), device)
	read, err := weights.ReadAdapter(dir, base.Config)
	if err != nil {
		t.Fatal(err)
	}
	a, err = model.Adapt(t.Context(), base, read.Config, read.Layout, func(from int64, dst []float32) error { copy(dst, read.Values[from:]); return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(context.Background()) })
	return base, a, read
}

func adapterSteps(t *testing.T, dir, device string, g ranks.Group) {
	t.Helper()
	const tolLoss, tolNorm, tolSum, tolSumSq = 1e-4, 2e-4, 2e-3, 1e-4
	base, a, read := openAdapter(t, dir, device)
	before := masterOf(t, base)
	wantHeadRows(t, base, model.All(base), HeadRows(base.Device.IsCUDA(), true))
	wantHeadRows(t, a.Model(), a, HeadRows(base.Device.IsCUDA(), false))
	want := takeSteps(t, g, a.Model(), a, dir, tolLoss, tolNorm)
	for _, p := range read.Layout.Tensors() {
		values := make([]float32, p.Numel())
		if err := a.Master().Read(t.Context(), p.Offset, values); err != nil {
			t.Fatal(err)
		}
		wantFinal(t, want, p.Name, values, tolSum, tolSumSq)
	}
	if !slices.Equal(before, masterOf(t, base)) {
		t.Error("the base changed")
	}
}

// wantHeadRows checks how many rows of logits are in memory at once. On a CPU there are fewer if the head is not trained.
func wantHeadRows(t *testing.T, m *model.Model, params model.Params, want int64) {
	t.Helper()
	l, err := New(t.Context(), m, params, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	if l.opt.HeadRows != want {
		t.Errorf("%d rows of logits at once, want %d", l.opt.HeadRows, want)
	}
}
