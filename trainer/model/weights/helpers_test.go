package weights

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// tinyConfig returns a valid model of a few hundred parameters.
func tinyConfig(family string) arch.Config {
	c := arch.Config{Family: family, VocabSize: 11, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 4, FFN: 6,
		MaxPosition: 32, Tokens: arch.SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}}
	if arch.HasExperts(family) {
		c.Mixture = &arch.Mixture{Experts: 3, PerToken: 2, FFN: 5, Normalise: true, Step: 1}
	}
	if family == arch.Mixtral || family == arch.GPTOSS { // these families have no other MLP
		c.Mixture.FFN = c.FFN
	}
	return c.WithDefaults()
}

// randomWeights returns values for every tensor, and a reader of them for HF.
func randomWeights(cfg arch.Config, seed uint64) (map[string][]float32, func(name string, dst []float32) error) {
	random := rand.New(rand.NewPCG(seed, 1))
	weights := map[string][]float32{}
	for _, t := range cfg.Layout().Tensors() {
		values := make([]float32, t.Numel())
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		weights[t.Name] = values
	}
	return weights, func(name string, dst []float32) error {
		if copy(dst, weights[name]) != len(dst) {
			return fmt.Errorf("%s has %d values, but %d were requested", name, len(weights[name]), len(dst))
		}
		return nil
	}
}

// writeTiny writes a folder with random weights and returns it with the weights.
func writeTiny(t *testing.T, cfg arch.Config, dtype DType) (string, map[string][]float32) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	weights, read := randomWeights(cfg, 7)
	if err := (HF{Config: cfg, Read: read}).WriteFolder(dir, dtype, nil); err != nil {
		t.Fatal(err)
	}
	return dir, weights
}

func readAll(t *testing.T, s *Source, name string) []float32 {
	t.Helper()
	shape, _, ok := s.Info(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	n, _ := numel(shape)
	count, _ := rows(shape)
	values := make([]float32, n)
	if err := s.Read(name, 0, count, values); err != nil {
		t.Fatal(err)
	}
	return values
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
}
