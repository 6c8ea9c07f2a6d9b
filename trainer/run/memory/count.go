// Package memory counts the memory that the agents of a run will need, before anything is allocated, and compares it
// with the free memory of each device. The start of a run, `mgrpo doctor` and the error of a failed allocation use
// these counts; no other package counts memory.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package memory

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Count counts the need of an agent's worker. The agents `before` it hold the weights that it adapts.
func Count(cfg *config.Config, a *config.Agent, m Model, before ...*config.Agent) Need {
	p := Need{Agent: a.Name, Device: a.Ranks()[0], Shares: len(before) > 0}
	n := m.Arch.Parameters()
	p.addProcessMemory(cfg, a, m)
	p.Files = 4 * n
	if a.Adapts() {
		p.Files = 4 * m.Trained
	}
	if cfg.Learns(a) && cfg.Run.SaveMoments {
		p.Files += 8 * m.Trained
	}
	if s := cfg.Run.SaveDType; cfg.Learns(a) && !a.Adapts() && (s == "bf16" || s == "auto" && a.Model.Shape == nil) {
		p.Files += 2 * n // at most: weights saved in bf16 are also saved in fp32
	}
	p.compute(cfg, a, m.Arch, before...)
	p.record(a, m.Arch, trajectories(cfg, a))
	if cfg.Learns(a) || cfg.ColdStarts(a) { // a stopped cold start is saved from a copy, too
		p.Parts = append(p.Parts, Part{Snapshot, "cpu", 12 * m.Trained})
	}
	return p
}

// CountFollower counts the need of the process of one of an agent's further devices, which only samples and trains.
func CountFollower(cfg *config.Config, a *config.Agent, rank int, m Model) Need {
	p := Need{Agent: a.Name, Rank: rank, Device: a.Ranks()[rank]}
	p.addProcessMemory(cfg, a, m)
	p.compute(cfg, a, m.Arch)
	if !a.Engine.Remote() {
		p.record(a, m.Arch, int64(cfg.Conversations(a)))
	}
	return p
}

// compute adds the needs of sampling and training to the memory that is held. It names the keys
// that scale them.
func (n *Need) compute(cfg *config.Config, a *config.Agent, model arch.Config, before ...*config.Agent) {
	trains, size, gpu := cfg.Learns(a) || cfg.ColdStarts(a), valueSize(a), n.Device != "cpu"
	slots, context := cfg.Slots(a), a.ContextTokens(model.MaxPosition)
	prefix := "agents." + a.Name + ".engine."
	var activations int64
	if !a.Engine.Remote() { // otherwise the server has the cache and its own copy of the weights
		keys := size
		if a.HalfCache() {
			keys = 2
		}
		if cache := cacheBytes(cfg, append(slices.Clone(before), a), model, size, keys, gpu) - cacheBytes(cfg, before, model, size, keys, gpu); cache > 0 {
			n.add(KVCache, cache)
		}
		activations = samplingActivations(model, int64(slots), int64(context), size, gpu)
		if cacheTokens := a.Engine.CacheTokens; cacheTokens > 0 {
			n.lever(prefix+"cache_tokens", cacheTokens, KVCache)
		} else {
			n.lever(prefix+"slots", slots, KVCache)
		}
		if states := stateBytes(cfg, append(slices.Clone(before), a), model, size) - stateBytes(cfg, before, model, size); states > 0 {
			n.add(States, states)
			n.lever(prefix+"slots", slots, States)
		}
	}
	if trains {
		activations = max(activations, updateActivations(cfg, a, model, gpu))
	}
	if activations > 0 {
		n.add(Activations, activations)
	}
	if trains {
		n.trainingLever(a, context)
	}
	if gpu {
		n.add(Overhead, overhead(*n))
	}
}

// record adds the experts recorded for the given number of a mixture's sequences.
func (n *Need) record(a *config.Agent, model arch.Config, sequences int64) {
	context := a.ContextTokens(model.MaxPosition)
	routes := 2 * int64(model.RouteWidth()) * int64(context) * sequences
	if routes > 0 {
		part := Part{Routes, "cpu", routes}
		n.Parts = append(n.Parts, part)
		n.Levers = append(n.Levers, Lever{"agents." + a.Name + ".limits.max_tokens", context, part})
	}
}

// trainingLever adds the key that scales the activations of training.
func (n *Need) trainingLever(a *config.Agent, context int) {
	prefix := "agents." + a.Name
	if context > a.Engine.MicroBatchTokens {
		n.lever(prefix+".limits.max_tokens", context, Activations)
	} else {
		n.lever(prefix+".engine.micro_batch_tokens", a.Engine.MicroBatchTokens, Activations)
	}
}

// valueSize returns the size in bytes of a value of weights in use, cache and activations.
func valueSize(a *config.Agent) int64 {
	if a.ComputesBF16() {
		return 2
	}
	return 4
}

// trajectories returns the number of an agent's sequences with recorded experts at one time. They are the sequences of
// the steps in flight (for a sub-agent as many as are aligned), and the engine's conversations. Servers record none.
func trajectories(cfg *config.Config, a *config.Agent) int64 {
	if a.Engine.Remote() {
		return 0
	}
	rollouts := (1 + cfg.GRPO.MaxLag) * int64(cfg.Task.QueriesPerStep*cfg.GRPO.Rollouts)
	if a.Role == "sub" {
		rollouts *= int64(a.Align.D)
	}
	if a.Limits.Fold.At > 0 { // a stretch has at least one turn
		rollouts *= int64(a.Limits.MaxTurns)
	}
	return rollouts + int64(cfg.Conversations(a))
}

// cudaContext is the memory of a GPU's context, the kernels of LibTorch and ours, and the workspaces of cuBLAS, for any
// model.
const cudaContext = 768 << 20

// overhead returns an agent's GPU memory outside of its tensors. Agents that share weights share a process. The
// allocator cannot use all gaps between tensors of different sizes: a twentieth is lost where its segments grow.
func overhead(n Need) int64 {
	context := int64(cudaContext)
	if n.Shares {
		context = 0
	}
	return context + n.sum(func(p Part) bool { return p.Device == n.Device })/20
}
