package memory

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Model describes an agent's model without its weights.
type Model struct {
	Arch      arch.Config // valid
	Trained   int64       // parameters that training changes, if the agent learns
	Quantised int64       // bytes of the weights that stay quantised, or 0
}

// Kind is the purpose of a piece of memory.
type Kind string

// All kinds except Activations, Overhead and Routes are exact to the byte; allocators may round each allocation up.
const (
	Weights     Kind = "weights"     // read by forward passes; may be quantised; with the rotary tables and copies for sampling
	Master      Kind = "master"      // fp32 weights, if Weights are bf16 and trained
	Adapters    Kind = "adapters"    // fp32; trained in place of the weights
	Gradients   Kind = "gradients"   // fp32; also the bf16 gradients of one micro-batch if Weights are bf16
	Moments     Kind = "moments"     // AdamW's moments, fp32
	Reference   Kind = "reference"   // weights of the KL reference, in the type in which the agent computes
	KVCache     Kind = "KV cache"    // blocks for engine.cache_tokens
	States      Kind = "states"      // recurrent states of an engine: as many as arch.RecurrentStates returns
	Activations Kind = "activations" // the larger of a micro-batch's in training and a sampling pass's; an estimate
	Routes      Kind = "routes"      // experts recorded with a mixture's trajectories, in host memory, for the longest trajectories
	Overhead    Kind = "overhead"    // CUDA's context, kernels and workspaces, and gaps between tensors; an estimate
	Snapshot    Kind = "snapshot"    // fp32 copy of trained weights and moments from which checkpoints are written
)

// Part is memory for one purpose.
type Part struct {
	Kind   Kind
	Device string // "cpu" is the host's memory
	Bytes  int64
}

// Need is the memory that one process of an agent will need: nothing, if its model is hosted.
type Need struct {
	Agent  string
	Rank   int    // rank of the process among the agent's devices; 0: the worker
	Device string // where it computes: "cpu", "cuda:N"
	Parts  []Part // at most one of each kind, none of 0 bytes
	Files  int64  // bytes on disk of one checkpoint
	Shares bool   // it adapts weights that an earlier agent holds
	Levers []Lever
}

// Lever is a configuration key that a part of the memory is proportional to.
type Lever struct {
	Key   string // such as agents.planner.engine.slots
	Value int
	Part
}

// keep adds buffers that the optimizer keeps between updates, on the device where the agent has them.
func (n *Need) keep(a *config.Agent, kind Kind, bytes int64) {
	if a.OptimizerState == "host" {
		n.Parts = append(n.Parts, Part{kind, "cpu", bytes})
	} else {
		n.add(kind, bytes)
	}
}

func (n *Need) add(kind Kind, bytes int64) {
	n.Parts = append(n.Parts, Part{kind, n.Device, bytes})
}

func (n *Need) lever(key string, value int, kind Kind) {
	n.Levers = append(n.Levers, Lever{key, value, Part{kind, n.Device, n.Of(kind)}})
}

// Of returns the number of bytes that the agent needs for a purpose.
func (n Need) Of(kind Kind) int64 { return n.sum(func(part Part) bool { return part.Kind == kind }) }

func (n Need) sum(of func(Part) bool) (bytes int64) {
	for _, part := range n.Parts {
		if of(part) {
			bytes += part.Bytes
		}
	}
	return bytes
}
