package model

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/memorytest"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// TestLoadPeakMemory: while a checkpoint streams in, anonymous memory grows by little more than the
// weights as they are held.
func TestLoadPeakMemory(t *testing.T) {
	ctx := context.Background()
	cfg := arch.Config{
		Family: arch.Llama, VocabSize: 40000, Hidden: 1024, Layers: 2, Heads: 16, KVHeads: 4, HeadDim: 64, FFN: 3072,
		RMSEps: 1e-5, RopeTheta: 1e4, MaxPosition: 64, Tied: true,
	}
	dir := filepath.Join(t.TempDir(), "model")
	err := weights.WriteHF(dir, cfg, func(_ string, dst []float32) error {
		for i := range dst {
			dst[i] = float32(i%7) * 0.01
		}
		return nil
	}, weights.F32, nil)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	src, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var m *Model
	grown := memorytest.Peak(t, func() { m, err = Load(ctx, dev, src, Options{Compute: torch.Float32}) })
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(ctx)
	size := 4 * m.Layout.Numel
	if float64(grown) > 1.2*float64(size) || float64(grown) < 0.9*float64(size) {
		t.Errorf("anonymous memory grew by %d MB for %d MB of weights", grown>>20, size>>20)
	}
}
