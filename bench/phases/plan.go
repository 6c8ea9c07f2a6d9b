package phases

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
)

// plannedBytes returns the memory plan's bytes for the tensors of this case's update on a GPU. It leaves out the cache, which the case
// does not have, and CUDA's own memory.
func (b bench) plannedBytes() (bytes int64, err error) {
	text := fmt.Sprintf(`
run: {name: plan}
task: {kind: jsonl, train: t, eval: e}
agents:
  a: {role: main, model: m, device: cuda, dtype: bf16, limits: {max_tokens: %d}, engine: {slots: 1, micro_batch_tokens: %d}}
`, b.shape.promptTokens+b.shape.newTokens, b.shape.microTokens())
	cfg, err := config.Parse("plan.yaml", []byte(text), nil)
	if err != nil {
		return 0, err
	}
	need := memory.Count(cfg, cfg.Agent("a"), memory.Model{Arch: b.weights.config, Trained: b.weights.config.Parameters()})
	for _, kind := range []memory.Kind{memory.Weights, memory.Master, memory.Gradients, memory.Moments, memory.Activations} {
		bytes += need.Of(kind)
	}
	return bytes, nil
}

// logRow logs a GPU row's tokens a second, and for an update the peak of its memory next to the plan.
func (b bench) logRow(row measure.Row, o Options) {
	tokens := b.shape.sequences() * (b.shape.promptTokens + b.shape.newTokens)
	if b.suite == "rollout" {
		tokens = b.shape.sequences() * b.shape.newTokens
	}
	for _, p := range row.Providers {
		if p.Status == "ok" {
			o.Log("%s %s, %s: %.0f tokens/s, peak memory %s", b.suite, b.name, p.Name, float64(tokens)/p.Median, measure.Bytes(p.PeakExtraBytes))
		}
	}
	if b.suite != "learner" || !b.weights.large {
		return
	}
	planned, err := b.plannedBytes()
	if err != nil {
		o.Log("no plan: %v", err)
		return
	}
	row.Providers[0].Settings["planned_bytes"] = planned
	o.Log("%s %s: peak memory is %.2f of the plan's %s", b.suite, b.name, float64(row.Providers[0].PeakExtraBytes)/float64(planned), measure.Bytes(planned))
}
