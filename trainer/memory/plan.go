// Package memory counts, before anything is allocated, what the agents of a run will hold in memory and what of it
// is more than there is. The start of a run, `mgrpo doctor` and the error of a failed allocation read these plans;
// nobody counts beside them.
package memory

import (
	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/learner"
)

// Kind is what memory is held for.
type Kind string

// All but Activations are exact to the byte, without what allocators round up.
const (
	Weights     Kind = "weights"     // read by forward passes, with the rotary tables and a sampler's bf16 copy
	Master      Kind = "master"      // fp32 weights, where Weights are bf16
	Gradients   Kind = "gradients"   // fp32, and where Weights are bf16 those of one micro-batch besides
	Moments     Kind = "moments"     // AdamW's, fp32
	Reference   Kind = "reference"   // weights of the KL term, held as the agent's are
	KVCache     Kind = "KV cache"    // of engine.slots conversations
	Activations Kind = "activations" // of a micro-batch in training or a pass of sampling, whichever is larger; an estimate
	Snapshot    Kind = "snapshot"    // fp32 copy of weights and moments from which checkpoints are written
)

// Part is memory for one purpose.
type Part struct {
	Kind   Kind
	Device string // "cpu" is the host's memory
	Bytes  int64
}

// Plan is what one agent will hold.
type Plan struct {
	Agent  string
	Device string // where it computes: "cpu", "cuda:N"
	Parts  []Part // no more than one of a kind, none of 0 bytes
	Files  int64  // bytes on disk of one checkpoint
	Levers []Lever
}

// Lever is a key of which a part is a multiple.
type Lever struct {
	Key   string // such as agents.planner.engine.slots
	Value int
	Part
}

// Count plans an agent of the configuration whose model has the given architecture, which must be valid.
func Count(cfg *config.Config, a *config.Agent, model arch.Config) Plan {
	p := Plan{Agent: a.Name, Device: a.Device}
	if p.Device == "cuda" {
		p.Device = "cuda:0"
	}
	taught := cfg.Learns(a) || cfg.ColdStarts(a)
	n, half := model.Parameters(), a.ComputesBF16()
	slots, context := int64(cfg.Slots(a)), int64(a.ContextTokens(model.MaxPosition))
	size := int64(4) // bytes of a value of weights in use, cache and activations
	if half {
		size = 2
	}
	rotary := 4 * context * int64(model.HeadDim)

	held := n*size + rotary
	if a.Engine.DType == "bf16" {
		held += 2 * n
	}
	p.add(Weights, held)
	if half {
		p.add(Master, 4*n)
	}
	p.Files = 4 * n
	if taught {
		gradients := 4 * n
		if half {
			gradients += 2 * n
		}
		p.add(Gradients, gradients)
		p.add(Moments, 8*n)
		p.Files += 8 * n
	}
	if s := cfg.Run.SaveDType; cfg.Learns(a) && (s == "bf16" || s == "auto" && a.Model.Shape == nil) {
		p.Files += 2 * n // at most: weights saved in bf16 are there in fp32 too
	}
	if cfg.GRPO.KL != "none" && cfg.Learns(a) {
		reference := 4*n + rotary
		if half {
			reference += 2 * n
		}
		p.add(Reference, reference)
	}
	p.add(KVCache, 2*slots*context*int64(model.Layers)*kvWidth(model)*size)
	activations := samplingActivations(model, slots, context, size)
	if taught {
		activations = max(activations, trainingActivations(model, &a.Engine, size))
	}
	p.add(Activations, activations)
	if cfg.Learns(a) { // one that is frozen after its cold start is saved from its weights
		p.Parts = append(p.Parts, Part{Snapshot, "cpu", 12 * n})
	}

	prefix := "agents." + a.Name + ".engine."
	p.lever(prefix+"slots", int(slots), KVCache)
	if taught {
		p.lever(prefix+"micro_batch_tokens", a.Engine.MicroBatchTokens, Activations)
	}
	return p
}

func (p *Plan) add(kind Kind, bytes int64) {
	p.Parts = append(p.Parts, Part{kind, p.Device, bytes})
}

func (p *Plan) lever(key string, value int, kind Kind) {
	p.Levers = append(p.Levers, Lever{key, value, Part{kind, p.Device, p.Of(kind)}})
}

// Of is how many bytes the agent holds for a purpose.
func (p Plan) Of(kind Kind) int64 { return p.sum(func(part Part) bool { return part.Kind == kind }) }

// On is how many bytes the agent holds in the memory of a device.
func (p Plan) On(device string) int64 {
	return p.sum(func(part Part) bool { return part.Device == device })
}

func (p Plan) sum(of func(Part) bool) (bytes int64) {
	for _, part := range p.Parts {
		if of(part) {
			bytes += part.Bytes
		}
	}
	return bytes
}

func kvWidth(c arch.Config) int64 { return int64(c.KVHeads) * int64(c.HeadDim) }

// layerValues counts what one layer keeps of a token for its backward pass: both norms' inputs and outputs, q, k and
// v before and after RoPE, the attention's output and log-sum-exp, and the MLP's gate, up and product.
func layerValues(c arch.Config) int64 {
	return 4*int64(c.Hidden) + 3*int64(c.Heads)*int64(c.HeadDim) + 3*kvWidth(c) + int64(c.Heads) + 3*int64(c.FFN)
}

// trainingActivations are those of one micro-batch, forward and backward.
func trainingActivations(c arch.Config, e *config.Engine, size int64) int64 {
	tokens := int64(e.MicroBatchTokens)
	layers := int64(c.Layers) * layerValues(c)
	if e.CheckpointActivations {
		layers = int64(c.Layers)*int64(c.Hidden) + layerValues(c)
	}
	// The layer at work also holds gradients of what it kept; logits exist as values and as gradients.
	return tokens*(layers+layerValues(c))*size + 2*4*min(learner.DefaultHeadRows, tokens)*int64(c.VocabSize)
}

// samplingActivations are those of one decode pass of all slots; prompts go through in pieces no larger than a
// training micro-batch. Where our own attention does not run, one layer's cached keys and values are gathered.
func samplingActivations(c arch.Config, slots, context, size int64) int64 {
	values := slots * (layerValues(c)*size + 4*int64(c.VocabSize))
	if size != 4 {
		values += 2 * slots * context * kvWidth(c) * size
	}
	return values
}
