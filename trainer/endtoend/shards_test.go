package endtoend

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote/remotetest"
)

// An agent whose weights do not fit one device samples on a server. The server's log-probs equal the ones that the agent's devices
// compute together, before and during training. A sub-agent that is frozen after its cold start keeps its shares for checkpoints.
// The same run again gives the same bits, and three devices can resume the run of two. The devices divide the experts of a mixture.
func TestShards(t *testing.T) {
	for name, more := range map[string][]string{
		"team": nil, "main_only": {"run.arm=main_only"},
		"mixture": {"agents.researcher.model={family: qwen3_moe, width: 32, layers: 2, heads: 4, kv_heads: 2, head_dim: 8, ffn: 64, experts: 4, experts_per_token: 2, expert_ffn: 16}",
			"grpo.rollouts=8", "task.queries_per_step=4"}, // enough that the rewards of some group differ
		"hybrid": {"agents.researcher.model={family: lfm2, width: 32, layers: 4, heads: 2, kv_heads: 1, head_dim: 16, ffn: 64}", "grpo.rollouts=8", "task.queries_per_step=4"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(size int, dir string, steps int, o trainer.TrainOptions) *recorder {
				server := remotetest.Start(t)
				engine := fmt.Sprintf("agents.researcher.engine={kind: sglang, url: [%q], weights: {path: %q, dtype: fp32}, checkpoint_activations: true}",
					server.URL, t.TempDir())
				sets := append(onRanks(1), engine, "agents.researcher.shard=full",
					fmt.Sprintf("agents.researcher.devices=[%s]", strings.Join(slices.Repeat([]string{"cpu"}, size), ", ")), fmt.Sprintf("run.steps=%d", steps))
				seen := mustTrain(t, load(t, dir, append(sets, more...)...), o)
				if server.Loads() < 1 {
					t.Error("the server received no weights")
				}
				return seen
			}
			dir, again := t.TempDir(), t.TempDir()
			seen := run(2, dir, 1, trainer.TrainOptions{})
			if name != "main_only" {
				run(2, again, 1, trainer.TrainOptions{})
				sameWeights(t, digests(t, again, 1), digests(t, dir, 1))
				if v := seen.find(t, "step", 1, "researcher").Values; v["grad_norm"] == 0 || !(v["gap_mean"] < 1e-4) {
					t.Errorf("gradient norm %v, and a gap of %v between server and trainer", v["grad_norm"], v["gap_mean"])
				}
			}
			run(3, dir, 2, trainer.TrainOptions{Resume: true})
		})
	}
}
