package worker

import (
	"reflect"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// TestMinibatchesAreShuffled: each query of a step is in one minibatch. The assignment depends on the seed, the step and the pass, and on
// nothing else.
func TestMinibatchesAreShuffled(t *testing.T) {
	queries := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
	of := func(seed uint64) *steps {
		cfg := &config.Config{}
		cfg.Run.Seed, cfg.GRPO.Epochs, cfg.GRPO.Minibatches = seed, 2, 3
		return &steps{common: &common{cfg: cfg}}
	}
	seen := map[string][][]string{}
	for _, c := range []struct {
		name  string
		seed  uint64
		step  int64
		epoch int
	}{{"first", 1, 5, 0}, {"another pass", 1, 5, 1}, {"another step", 1, 6, 0}, {"another seed", 2, 5, 0}} {
		got := of(c.seed).minibatches(c.step, c.epoch, queries)
		all := slices.Sorted(slices.Values(slices.Concat(got...)))
		if len(got) != 3 || !slices.Equal(all, queries) {
			t.Errorf("%s: got %v, want 3 minibatches with each query once", c.name, got)
		}
		if again := of(c.seed).minibatches(c.step, c.epoch, queries); !reflect.DeepEqual(again, got) {
			t.Errorf("%s: got %v, and %v when computed again", c.name, got, again)
		}
		for name, other := range seen {
			if reflect.DeepEqual(got, other) {
				t.Errorf("%s has the same minibatches as %s: %v", c.name, name, got)
			}
		}
		seen[c.name] = got
	}
}
