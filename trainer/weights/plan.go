package weights

import (
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/arch"
)

// PlanOptions says how a model will be used. Sizes that are 0 take nothing.
type PlanOptions struct {
	ComputeDType DType // of weights, KV cache and activations: F32 or BF16

	Slots      int64 // sequences the rollout engine holds at once
	ContextLen int64 // tokens of KV cache a slot

	Train            bool  // hold gradients and optimizer state
	Checkpointing    bool  // keep only each layer's input for the backward pass
	MicroBatchTokens int64 // tokens in one forward and backward pass
	LogitRows        int64 // rows of logits at a time in the loss
}

// MemoryPlan is an estimate in bytes, before anything is allocated. All but Activations are exact.
type MemoryPlan struct {
	Weights     int64 // with the rotary tables of ContextLen positions, float32
	Gradients   int64 // float32
	Optimizer   int64 // float32 m and v, and master weights where ComputeDType is not F32
	KVCache     int64
	Activations int64 // of the larger of training and rollout, logits included
	Total       int64 // of these
	Snapshot    int64 // of the host's memory besides: a float32 copy of weights, m and v, from which checkpoints are written
}

// Plan estimates the memory one agent needs. cfg must be valid.
func Plan(cfg arch.Config, o PlanOptions) MemoryPlan {
	size := o.ComputeDType.Size()
	parameters := cfg.Parameters()
	p := MemoryPlan{Weights: parameters*size + 4*o.ContextLen*int64(cfg.HeadDim)}
	if o.Train {
		p.Gradients, p.Optimizer, p.Snapshot = 4*parameters, 8*parameters, 12*parameters
		if o.ComputeDType != F32 {
			p.Optimizer += 4 * parameters
		}
	}
	kv := int64(cfg.KVHeads) * int64(cfg.HeadDim)
	p.KVCache = 2 * int64(cfg.Layers) * o.Slots * o.ContextLen * kv * size
	p.Activations = max(trainActivations(cfg, o, size), rolloutActivations(cfg, o, size))
	p.Total = p.Weights + p.Gradients + p.Optimizer + p.KVCache + p.Activations
	return p
}

// layerValues counts what one layer keeps of a token for its backward pass: both norms' inputs and
// outputs, q, k and v before and after RoPE, the attention's output and log-sum-exp, and the MLP's
// gate, up and product.
func layerValues(c arch.Config) int64 {
	q, kv := int64(c.Heads)*int64(c.HeadDim), int64(c.KVHeads)*int64(c.HeadDim)
	return 4*int64(c.Hidden) + 3*q + 3*kv + int64(c.Heads) + 3*int64(c.FFN)
}

func trainActivations(c arch.Config, o PlanOptions, size int64) int64 {
	if !o.Train {
		return 0
	}
	layers := int64(c.Layers) * layerValues(c)
	if o.Checkpointing {
		layers = int64(c.Layers)*int64(c.Hidden) + layerValues(c)
	}
	// The layer at work also holds gradients of what it kept; logits exist as values and as gradients.
	return o.MicroBatchTokens*(layers+layerValues(c))*size + 2*4*min(o.LogitRows, o.MicroBatchTokens)*int64(c.VocabSize)
}

// rolloutActivations counts one decode step of all slots; prefill goes through in pieces no larger than
// a training micro-batch. Where our own attention does not run, one layer's cached keys and values are gathered.
func rolloutActivations(c arch.Config, o PlanOptions, size int64) int64 {
	values := o.Slots * (layerValues(c)*size + 4*int64(c.VocabSize))
	if o.ComputeDType != F32 {
		values += 2 * o.Slots * o.ContextLen * int64(c.KVHeads) * int64(c.HeadDim) * size
	}
	return values
}

// String returns a table of at most 80 columns.
func (p MemoryPlan) String() string {
	var b strings.Builder
	for _, line := range []struct {
		name  string
		bytes int64
	}{{"weights", p.Weights}, {"gradients", p.Gradients}, {"optimizer", p.Optimizer}, {"KV cache", p.KVCache},
		{"activations", p.Activations}, {"total", p.Total}, {"snapshot", p.Snapshot}} {
		fmt.Fprintf(&b, "%-12s %12s\n", line.name, formatBytes(line.bytes))
	}
	return b.String()
}

func formatBytes(n int64) string {
	value, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
