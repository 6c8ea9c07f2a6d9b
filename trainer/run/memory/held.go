package memory

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// addProcessMemory adds the memory of every process of an agent. Each holds the weights, unless an earlier
// agent holds them, the weights of the KL term, and its share of the buffers for training.
func (n *Need) addProcessMemory(cfg *config.Config, a *config.Agent, m Model) {
	layout := m.Arch.Layout() // slow to make for a mixture
	half, parameters, size := a.ComputesBF16(), layout.Numel, valueSize(a)
	trains := cfg.Learns(a) || cfg.ColdStarts(a)
	inShares := a.Shard == "full" && trains
	rotary := 4 * int64(a.ContextTokens(m.Arch.MaxPosition)) * m.Arch.RotaryWidth()
	weights := parameters * size
	switch {
	case m.Quantised > 0:
		weights = m.Quantised
	case inShares:
		weights = gathered(a, layout)
	case cfg.HoldsBF16(a):
		if weights = 2 * parameters; !half {
			weights += 4 * layout.Vectors()
		}
	case a.Engine.DType == "bf16":
		weights += 2 * parameters
	}
	if !n.Shares {
		n.add(Weights, weights+rotary)
		if half && !cfg.Frozen(a) {
			n.keep(a, Master, 4*longestShare(a, layout, parameters))
		}
	}
	if a.Adapts() {
		n.add(Adapters, 4*m.Trained)
	}
	if trains {
		share := longestShare(a, layout, m.Trained)
		gradients := 4 * m.Trained
		if half && !a.Adapts() || inShares {
			gradients = size*m.Trained + 4*share
			if a.Engine.CheckpointActivations { // passes go layer by layer
				gradients = size*oneLayer(a, layout, inShares) + 4*share
			}
		}
		n.add(Gradients, gradients)
		n.keep(a, Moments, 8*share)
	}
	switch {
	case !cfg.HasKL(a):
	case a.Adapts() && a.Reference == "":
		// The reference is a second set of adapters, or otherwise the base model, which is loaded already.
		if a.LoRA.Folder() != "" || cfg.KLToColdStart(a) {
			n.add(Reference, 4*m.Trained)
		}
	default:
		reference := parameters * size
		if inShares {
			reference = gathered(a, layout)
		}
		n.add(Reference, reference+rotary)
	}
}

// gathered returns the size of the weights if no rank has whole layers: a share, the current layer and the next without
// their experts, and weights outside of layers.
func gathered(a *config.Agent, layout *arch.Layout) int64 {
	_, most := ranks.Arrange(model.Blocks(layout, true), model.ResidentLayers, ranks.Block.Gathered)
	return valueSize(a) * (longestShare(a, layout, layout.Numel) + most)
}

// oneLayer returns the largest number of gradients that a rank computes at a time: the gradients of the
// largest layer and of the weights outside of layers. If ranks divide experts, a rank counts only its own experts.
func oneLayer(a *config.Agent, layout *arch.Layout, inShares bool) int64 {
	of := len(a.Ranks())
	_, most := ranks.Arrange(model.Blocks(layout, inShares), 1, func(b ranks.Block) int64 { return b.Computed(0, of) })
	return most
}

// longestShare returns the size of the largest share of the trained values (all parameters, or adapters) among an
// agent's ranks.
func longestShare(a *config.Agent, layout *arch.Layout, trained int64) int64 {
	blocks := []ranks.Block{{Span: ranks.Span{To: trained}}}
	if trained == layout.Numel {
		blocks = model.Blocks(layout, a.Shard == "full")
	}
	return ranks.ShareOf(blocks, 0, len(a.Ranks())).Numel()
}
