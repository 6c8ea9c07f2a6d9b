package phases

import (
	"context"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// phase is the work of a case, ours and the peer's.
type phase struct {
	peer    string // of bench/peers/phases.py
	adapted string // the peer that trains adapters; "": none
	options actorOptions
	work    func(ctx context.Context, a *actor, w *workload) error
	bytes   func(c arch.Config, s shape, weight float64, adapters int64) measure.Amount // weight: bytes of a weight that generation reads
	flops   func(c arch.Config, s shape, adapters int64) measure.Amount                 // adapters: number of their parameters
}

var phases = map[string]phase{
	"rollout": {"hf-generate", "", actorOptions{engine: true}, rollOut, decodeBytes, rolloutFLOPs},
	"learner": {"hf-forward-backward", "peft", actorOptions{learner: true}, update, noBytes, learnerFLOPs},
	"step":    {"trl", "trl-peft", actorOptions{engine: true, learner: true}, step, stepBytes, stepFLOPs},
}

// gpuCases returns the cases for a GPU, the most important first: shapes of Qwen 3 in bf16.
func gpuCases(suite string) (all []bench) {
	networks := []struct {
		name string
		network
	}{{"qwen3-1.7b", qwen3Large}, {"qwen3-0.6b", qwen3Small}}
	for _, n := range networks {
		b := bench{name: n.name, suite: suite, weights: n.network, precision: half}
		switch suite {
		case "rollout":
			b.shape = shape{prompts: 64, rollouts: 1, promptTokens: 192, newTokens: 64}
			b.targets = []measure.Target{faster(phases[suite].peer, 3)}
			all = append(all, b)
		case "learner":
			b.shape = shape{prompts: 16, rollouts: 1, promptTokens: 512, newTokens: 512}
			small := b
			small.name += "-small"
			b.targets = []measure.Target{faster(liger, 1)}
			b.shape.microBatch = b.shape.sequences() * (b.shape.promptTokens + b.shape.newTokens)
			all = append(all, b, small)
		case "step":
			b.shape = shape{prompts: 8, rollouts: 8, promptTokens: 256, newTokens: 256}
			all = append(all, b)
		}
	}
	return all
}

func casesOf(suite string, quick bool) []bench {
	shared := shape{prompts: 2, rollouts: 8, promptTokens: 90, newTokens: 64}
	if quick {
		b := bench{name: "tiny", suite: suite, weights: tiny, shape: shape{prompts: 2, rollouts: 3, promptTokens: 12, newTokens: 7}}
		lora := b
		lora.name, lora.weights = "tiny-lora", tiny.adapted()
		if suite == "learner" {
			return []bench{b, lora}
		}
		inHalf := b
		inHalf.name, inHalf.precision = "tiny-bf16", half
		if suite == "step" {
			inHalf.precision = mixed
			return []bench{b, inHalf, lora}
		}
		return []bench{b, inHalf}
	}
	peer := phases[suite].peer
	switch suite {
	case "rollout":
		apart := shape{prompts: 16, rollouts: 1, promptTokens: 90, newTokens: 64}
		return []bench{
			{"smollm2", suite, smolLM2, apart, full, []measure.Target{faster(peer, 4), nearFloor(0.6)}},
			{"smollm2-bf16", suite, smolLM2, apart, half, []measure.Target{faster(peer, 6), nearFloor(0.6)}},
			{"smollm2-shared", suite, smolLM2, shared, full, nil},
			{"mixture", suite, experts, apart, full, []measure.Target{faster(peer, 3)}},
			{"mixture-bf16", suite, experts, apart, half, []measure.Target{faster(peer, 3)}},
			{"hybrid", suite, hybrid, apart, full, []measure.Target{faster(peer, 3)}},
			{"hybrid-bf16", suite, hybrid, apart, half, []measure.Target{faster(peer, 3)}},
			{"recurrent", suite, recurrent, apart, full, []measure.Target{faster(peer, 3)}},
			{"recurrent-bf16", suite, recurrent, apart, half, []measure.Target{faster(peer, 3)}},
		}
	case "learner":
		dense := shape{prompts: 16, rollouts: 1, promptTokens: 90, newTokens: 64} // no prompt is shared: the same work for both
		apart := shape{prompts: 16, rollouts: 1, promptTokens: 64, newTokens: 64}
		return []bench{
			{"smollm2", suite, smolLM2, shared, full, []measure.Target{faster(peer, 2)}},
			{"smollm2-dense", suite, smolLM2, dense, full, []measure.Target{faster(peer, 1.2)}},
			{"smollm2-bf16", suite, smolLM2, shared, half, []measure.Target{faster(peer, 2)}},
			{"mixture", suite, experts, apart, full, []measure.Target{faster(peer, 1.5)}},
			{"hybrid", suite, hybrid, apart, full, []measure.Target{faster(peer, 2)}},
			{"recurrent", suite, recurrent, apart, full, []measure.Target{faster(peer, 2)}},
			{"smollm2-lora", suite, adapted, shared, full, []measure.Target{faster(inFull, 1.25), smaller(inFull, 0.5)}},
		}
	case "step":
		return []bench{
			{"smollm2", suite, smolLM2, shared, full, []measure.Target{faster(peer, 3), nearFloor(0.7), smaller(peer, 0.6)}},
			{"smollm2-bf16", suite, smolLM2, shared, mixed, []measure.Target{faster(peer, 4.5)}},
			{"small", suite, small, shared, full, []measure.Target{faster(peer, 8)}},
			{"smollm2-lora", suite, adapted, shared, full, []measure.Target{faster(phases[suite].adapted, 3), faster(inFull, 1.25), smaller(inFull, 0.5)}},
		}
	}
	return nil
}
