package assemble

import (
	"context"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// A base is loaded for the first of those that share it and closed by the last; without a key nobody shares.
func TestBases(t *testing.T) {
	var bases Process
	loads := 0
	load := func() (*model.Model, error) {
		loads++
		dev, err := torch.Open("cpu", 1)
		if err != nil {
			return nil, err
		}
		return model.Random(t.Context(), dev, arch.Config{Family: arch.Llama, VocabSize: 5, Hidden: 4, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 4,
			FFN: 4, RMSEps: 1e-6, RopeTheta: 1e4, MaxPosition: 8}, 1, model.Options{Compute: torch.Float32})
	}
	var models []*model.Model
	var frees []func(context.Context) error
	for _, key := range []string{"a", "", "a", "b", ""} {
		m, free, err := bases.take(key, load)
		if err != nil {
			t.Fatal(err)
		}
		models, frees = append(models, m), append(frees, free)
	}
	if loads != 4 || models[0] != models[2] || models[1] == models[4] {
		t.Errorf("%d models were loaded for three keys and two without", loads)
	}
	usable := func(m *model.Model) bool {
		return m.Device.Do(t.Context(), func(*torch.Scope) error { m.Master.Ptr(); return nil }) == nil
	}
	if err := frees[0](t.Context()); err != nil || !usable(models[2]) {
		t.Errorf("closed under the other agent (%v)", err)
	}
	for _, free := range frees[1:] {
		if err := free(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if usable(models[2]) || usable(models[1]) || len(bases.held) != 0 {
		t.Errorf("still held: %v", bases.held)
	}
}
