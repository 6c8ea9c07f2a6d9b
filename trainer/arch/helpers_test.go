package arch

import (
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// tinyConfig is a valid model of a few hundred parameters.
func tinyConfig(family string) Config {
	return Config{Family: family, VocabSize: 11, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 4, FFN: 6,
		MaxPosition: 32, BOS: []int32{1}, EOS: []int32{2}}.WithDefaults()
}

// goldenConfigs are the config.json files of the golden models.
func goldenConfigs(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(golden.Dir(t, "models"), "*", "config.json"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no model goldens: %v", err)
	}
	return found
}
