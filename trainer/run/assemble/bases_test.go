package assemble

import (
	"context"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// The first agent of a base loads it, and the last one closes it with its engine. Agents without a key do not share a base.
func TestBases(t *testing.T) {
	var process Process
	loads := 0
	load := func() (*model.Model, error) {
		loads++
		dev, err := torch.Open("cpu", 1)
		if err != nil {
			return nil, err
		}
		return model.Random(t.Context(), dev, arch.Config{Family: arch.Llama, VocabSize: 5, Hidden: 4, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 4,
			FFN: 4, RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 8}, 1, model.Options{Compute: torch.Float32})
	}
	var bases []*base
	var frees []func(context.Context) error
	for _, key := range []string{"a", "", "a", "b", ""} {
		b, free, err := process.take(key, load)
		if err != nil {
			t.Fatal(err)
		}
		bases, frees = append(bases, b), append(frees, free)
	}
	if loads != 4 || bases[0] != bases[2] || bases[1] == bases[4] {
		t.Errorf("%d models were loaded for three keys and two without", loads)
	}
	sampler := func(b *base) *local.Engine {
		e, err := b.sampler(t.Context(), local.Options{Slots: 1})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	engine := sampler(bases[0])
	if engine != sampler(bases[2]) || engine == sampler(bases[1]) {
		t.Error("agents must sample in one batch exactly if they share a base")
	}
	usable := func(b *base) bool {
		m := b.model
		return m.Device.Do(t.Context(), func(*torch.Scope) error { m.Master.Tensor.Ptr(); return nil }) == nil
	}
	if err := frees[0](t.Context()); err != nil || !usable(bases[2]) {
		t.Errorf("the base was closed while the other agent used it (%v)", err)
	}
	for _, free := range frees[1:] {
		if err := free(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if usable(bases[2]) || usable(bases[1]) || len(process.bases) != 0 {
		t.Errorf("bases are still open: %v", process.bases)
	}
}
