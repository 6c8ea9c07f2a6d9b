package archive

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// tinyConfig returns a valid model of a few hundred parameters.
func tinyConfig(family string) arch.Config {
	c := arch.Config{Family: family, VocabSize: 11, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 4, FFN: 6,
		MaxPosition: 32, Tokens: arch.SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}}
	return c.WithDefaults()
}

// randomWeights returns a reader for weights.HF.
func randomWeights(cfg arch.Config, seed uint64) func(name string, dst []float32) error {
	random := rand.New(rand.NewPCG(seed, 1))
	values := map[string][]float32{}
	for _, t := range cfg.Layout().Tensors() {
		values[t.Name] = make([]float32, t.Numel())
		for i := range values[t.Name] {
			values[t.Name][i] = float32(random.NormFloat64())
		}
	}
	return func(name string, dst []float32) error { copy(dst, values[name]); return nil }
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
}
