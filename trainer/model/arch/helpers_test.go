package arch

import (
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// tinyConfig returns a valid model of a few hundred parameters.
func tinyConfig(family string) Config {
	c := Config{Family: family, VocabSize: 11, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 4, FFN: 6,
		MaxPosition: 32, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}}
	switch f := families[family]; {
	case f.has.gatedDelta && f.defaults.Mixture != nil:
		c.Mixture = &Mixture{Experts: 3, PerToken: 2, FFN: 5, Normalise: true, Step: 1}
	case f.has.expertsAlone:
		c.Mixture = &Mixture{Experts: 3, PerToken: 2, FFN: 6, Normalise: true, Step: 1}
	case f.defaults.Mixture != nil:
		c.Mixture = &Mixture{Experts: 3, PerToken: 2, FFN: 5, Dense: []int{0}, Step: 1}
	}
	return c.WithDefaults()
}

// goldenConfigs returns the paths of the golden models' config.json files.
func goldenConfigs(t *testing.T) (paths []string) {
	t.Helper()
	for _, dir := range golden.Models(t, Families()) {
		paths = append(paths, filepath.Join(dir, "config.json"))
	}
	return paths
}
