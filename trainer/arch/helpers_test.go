package arch

import (
	"path/filepath"
	"strings"
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

// wantError fails unless err mentions every part.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one naming %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
}
