package roofline

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Agent describes how one agent computes.
type Agent struct {
	Name    string
	Devices []string // one for each process, "cpu" or "cuda:N"; empty: one process
	Arch    arch.Config

	Half    bool    // activations, gradients and the cache are bf16
	Weight  float64 // bytes of a matrix value that generation reads: 4, 2, or fewer if the matrix stays quantised
	Rounded bool    // run.matmul: bf16 rounds the factors of products

	Trained    int64 // parameters; 0: the agent does not learn
	Adapts     bool  // the trained parameters are adapters
	Checkpoint bool  // activations are computed again in the backward pass
	MicroBatch int   // tokens
	Observed   int   // forward passes without gradients: for old log-probs, and for a reference
	Epochs     int
	Updates    int // optimizer updates in a step

	Slots  int  // sequences that each process samples at once
	Remote bool // servers sample, and receive the weights after each step

	layers [][]arch.Leaf // the tensors of each layer; set by Floor
}

// AgentOf returns the description of an agent of the configuration. model is its architecture, trained is the number of trained
// parameters, and quantised is the size of its weights in bytes if they stay quantised, else 0.
func AgentOf(cfg *config.Config, a *config.Agent, model arch.Config, trained, quantised int64) Agent {
	out := Agent{
		Name: a.Name, Devices: a.Ranks(), Arch: model, Half: a.ComputesBF16(), Weight: 4, Rounded: cfg.Run.Matmul == "bf16" && a.Device == "cpu",
		Adapts: a.Adapts(), Checkpoint: a.Engine.CheckpointActivations, MicroBatch: a.Engine.MicroBatchTokens,
		Epochs: cfg.GRPO.Epochs, Updates: cfg.GRPO.Epochs * cfg.GRPO.Minibatches, Slots: cfg.Slots(a), Remote: a.Engine.Remote(),
	}
	for i := range out.Devices {
		if m := i / len(a.OnMachine()); m > 0 {
			out.Devices[i] += fmt.Sprintf(" of machine %d", m)
		}
	}
	switch {
	case quantised > 0:
		out.Weight = float64(quantised) / float64(model.Parameters())
	case out.Half || a.Engine.DType == "bf16":
		out.Weight = 2
	}
	if cfg.Learns(a) {
		out.Trained = trained
	}
	if cfg.GRPO.Old == "recomputed" {
		out.Observed++
	}
	if cfg.HasKL(a) {
		out.Observed++
	}
	return out
}

// WorkOf returns the work of an agent in a step. lengths gives the tokens and turns of its conversations, and calls is the number
// of calls of each sub-agent in a rollout. Every call has its own prompt.
func WorkOf(cfg *config.Config, a *config.Agent, lengths Work, calls int) Work {
	lengths.Prompts, lengths.Rollouts = cfg.Task.QueriesPerStep, cfg.GRPO.Rollouts
	if a.Role == "sub" {
		lengths.Prompts, lengths.Rollouts = lengths.Prompts*lengths.Rollouts*calls, 1
	}
	return lengths
}

// ranks returns the number of the agent's processes.
func (a Agent) ranks() int { return max(len(a.Devices), 1) }

// busiest returns the largest number of the agent's processes on one device.
func (a Agent) busiest() int {
	most, on := 1, map[string]int{}
	for _, d := range a.Devices {
		on[d]++
		most = max(most, on[d])
	}
	return most
}

// value returns the size of an activation in bytes.
func (a Agent) value() float64 {
	if a.Half {
		return 2
	}
	return 4
}

// generation returns the rate of generation's products in FLOP/s. few means that a pass has few rows.
func (a Agent) generation(d Device, few bool) float64 {
	wide, rounded := a.Weight == 4, a.Rounded && a.Weight == 2 && d.RoundedFew16 > 0
	switch {
	case few && rounded:
		return d.RoundedFew16
	case rounded:
		return d.RoundedPrompts16
	case few && wide:
		return d.Few32
	case few:
		return d.Few16
	case wide:
		return d.FP32
	}
	return d.Prompts16
}

// training returns the rate of training's products in FLOP/s.
func (a Agent) training(d Device) float64 {
	if a.Half || a.Rounded {
		return d.BF16
	}
	return d.FP32
}
