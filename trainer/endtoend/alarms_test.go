package endtoend

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
)

// TestAlarms checks that a sampler with different rounding causes a warning, and ends the run if its log-probs
// or its experts differ by more than the limits. A sampler with equal rounding chooses the same experts.
func TestAlarms(t *testing.T) {
	const (
		mixture = "agents.planner.model={family: qwen3_moe, width: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 192, experts: 8, experts_per_token: 3, expert_ffn: 32, max_positions: 256}"
		gap     = "log-prob gap between sampler and trainer is"
		experts = "the trainer's router would choose other experts than the sampler's for"
	)
	for name, c := range map[string]struct {
		sets        []string
		warned, end string
	}{
		"equal":        {[]string{"grpo.routing_warn=0", "grpo.routing_stop=1e-9"}, "", ""},
		"gap warn":     {[]string{"agents.planner.engine.dtype=bf16", "grpo.gap_warn=1e-6"}, gap, ""},
		"gap stop":     {[]string{"agents.planner.engine.dtype=bf16", "grpo.gap_warn=1e-6", "grpo.gap_stop=1e-6"}, "", "more than grpo.gap_stop 1e-06"},
		"routing warn": {[]string{"agents.planner.engine.dtype=bf16", "grpo.routing_warn=0"}, experts, ""},
		"routing stop": {[]string{"agents.planner.engine.dtype=bf16", "grpo.routing_warn=0", "grpo.routing_stop=1e-9"}, "", "more than grpo.routing_stop 1e-09"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &recorder{}
			sets := append(append(append([]string{mixture, "run.steps=1", "grpo.epochs=1", "grpo.minibatches=1"}, noColdStart...), withKL...), c.sets...)
			err := toTheEnd(trainer.Train(t.Context(), load(t, t.TempDir(), sets...), trainer.TrainOptions{Observer: seen}))
			if (err == nil) != (c.end == "") || err != nil && !strings.Contains(err.Error(), c.end) {
				t.Fatalf("the run ended with %v; want %q", err, c.end)
			}
			for _, alarm := range []string{gap, experts} {
				if warned := strings.Contains(seen.String(), "planner: warning: "+alarm); warned != (alarm == c.warned) {
					t.Errorf("warned %t of: %s\nnotes: %s", warned, alarm, seen)
				}
			}
		})
	}
}
