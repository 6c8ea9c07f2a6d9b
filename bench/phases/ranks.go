package phases

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
)

// alone is our own provider with one device.
const alone = "mgrpo-alone"

// ranked is a small shape. A configuration can describe it, too.
var ranked = network{name: "2 layers, width 64, vocabulary 512", config: llama(2, 64, 4, 2, 160, 512)}

// Ranks measures an update of an agent with n devices, each with a process, next to the update of an agent with one device. On CPUs both
// have the same number of threads in total, so equal times are ideal. On GPUs each rank has its own GPU, so n times the speed is ideal.
// Ranks logs the memory of rank 0 between updates.
func Ranks(ctx context.Context, n int, o Options) (*measure.Results, error) {
	b := bench{name: fmt.Sprintf("smollm2-%d-ranks", n), suite: "learner", weights: smolLM2,
		shape: shape{prompts: 8, rollouts: 4, promptTokens: 90, newTokens: 64}}
	if o.Quick {
		b.weights, b.shape = ranked, shape{prompts: 4, rollouts: 3, promptTokens: 12, newTokens: 7}
	}
	ideal := 1.0
	if o.Device != "cpu" {
		b.precision, ideal = half, float64(n)
	}
	b.targets = []measure.Target{faster(alone, 0.85*ideal)}
	held := map[string]int64{}
	beside := measure.Case{Label: b.name, Measure: func(ctx context.Context) (row measure.Row, err error) {
		err = b.prepared(ctx, o, func(w *workload) error {
			w.shared = true // two providers are in this process
			row = b.row()
			row.PeerDType = row.DType
			row.Bytes, row.FLOPs = noBytes(w.config, b.shape, 4, 0), learnerFLOPs(w.config, b.shape, 0)
			opener := func(name string, devices []string) measure.Opener {
				return measure.Opener{Name: name, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) {
					return openRanks(ctx, b, devices, w, o, func(bytes int64) { held[name] = bytes })
				}}
			}
			row, err = o.Schedule().Measure(ctx, row, []measure.Opener{opener(measure.Ours, devicesOf(o.Device, n)), opener(alone, devicesOf(o.Device, 1))})
			return err
		})
		for name, bytes := range held {
			o.Log("%s: rank 0 holds %d MiB between updates, %.2f of the memory of one device", name, bytes>>20, float64(bytes)/float64(held[alone]))
		}
		return row, err
	}}
	o.Only = ""
	return measure.Run(ctx, "learner", o, []measure.Case{beside})
}

// devicesOf returns n CPUs, or the first n GPUs.
func devicesOf(device string, n int) []string {
	if device == "cpu" {
		return slices.Repeat([]string{device}, n)
	}
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("cuda:%d", i))
	}
	return out
}

// openRanks opens the device, model and learner of an agent with these devices, as a run does.
func openRanks(ctx context.Context, b bench, devices []string, w *workload, o Options, holds func(bytes int64)) (measure.Provider, measure.Setup, error) {
	cfg, err := config.Parse("bench.yaml", []byte(b.configuration(devices, o)), nil)
	if err != nil {
		return nil, measure.Setup{}, err
	}
	before, err := tensorBytes(ctx, o)
	if err != nil {
		return nil, measure.Setup{}, err
	}
	parts, err := assemble.OpenLearner(ctx, assemble.AgentOptions{Config: cfg, Agent: "bench", Learns: true,
		Process: &assemble.Process{Agents: []string{"bench"}}})
	if err != nil {
		return nil, measure.Setup{}, err
	}
	a := &actor{device: parts.Device, model: parts.Model, learner: parts.Learner, before: before}
	held, memory, err := ownMemory(ctx, a.device, before)
	if err != nil {
		return nil, measure.Setup{}, errors.Join(err, parts.Close(context.WithoutCancel(ctx)))
	}
	holds(held)
	setup := measure.Setup{Version: "LibTorch " + torch.Version(), Settings: a.settings(w)}
	setup.Settings["devices"], setup.Settings["held_bytes"] = devices, held
	setup.Settings["peak"] = "memory of rank 0's tensors"
	return &measure.Native{
		Work:   func() error { return update(ctx, a, w) },
		Error:  func() (float64, error) { return a.newestError(ctx, w) },
		Done:   func() error { return parts.Close(context.WithoutCancel(ctx)) },
		Memory: memory,
	}, setup, nil
}

// tensorBytes returns the bytes of this process's tensors on the device of rank 0.
func tensorBytes(ctx context.Context, o Options) (int64, error) {
	d, err := torch.Open(o.Device, o.Threads)
	if err != nil {
		return 0, err
	}
	m, err := d.Memory(ctx)
	return m.Allocated, errors.Join(err, d.Close())
}

// configuration returns a configuration of one agent with the case's model.
func (b bench) configuration(devices []string, o Options) string {
	model := filepath.Join(o.Root, "models", b.weights.file)
	if c := b.weights.config; b.weights.file == "" {
		model = fmt.Sprintf("{family: %s, vocab: %d, width: %d, layers: %d, heads: %d, kv_heads: %d, head_dim: %d, ffn: %d, max_positions: %d, "+
			"norm_eps: %g, init_seed: 1}",
			c.Family, c.VocabSize, c.Hidden, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.FFN, c.MaxPosition, c.RMSEps)
	}
	dtype := "fp32"
	if b.precision != full {
		dtype = "bf16"
	}
	return fmt.Sprintf(`run: {name: bench, threads: %d}
task: {kind: research}
agents:
  bench:
    role: main
    model: %s
    dtype: %s
    devices: [%s]
    optimizer: {betas: [0.9, 0.98], weight_decay: 0.1, clip: 1}
    engine: {micro_batch_tokens: %d}
`, o.Threads, model, dtype, strings.Join(devices, ", "), microBatchTokens)
}
