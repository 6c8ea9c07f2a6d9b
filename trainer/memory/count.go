// Package memory counts the memory that the agents of a run will need, before anything is allocated, and compares it
// with the free memory of each device. The start of a run, `mgrpo doctor` and the error of a failed allocation use
// these counts; no other package counts memory.
package memory

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/ranks"
)

// Kind is the purpose of a piece of memory.
type Kind string

// All kinds but Activations, Overhead and Routes are exact to the byte; allocators may round each allocation up.
const (
	Weights     Kind = "weights"     // read by forward passes, quantised where they stay so, with the rotary tables and a sampler's copies
	Master      Kind = "master"      // fp32 weights, where Weights are bf16 and trained
	Adapters    Kind = "adapters"    // fp32: what is trained in place of the weights
	Gradients   Kind = "gradients"   // fp32, and where Weights are bf16 those of one micro-batch besides
	Moments     Kind = "moments"     // AdamW's, fp32
	Reference   Kind = "reference"   // weights of the KL reference, in the type in which the agent computes
	KVCache     Kind = "KV cache"    // blocks for engine.cache_tokens
	Activations Kind = "activations" // of a micro-batch in training or a pass of sampling, whichever is larger; an estimate
	Routes      Kind = "routes"      // experts recorded with the trajectories of a mixture, in the host's memory; if all are as long as they may be
	Overhead    Kind = "overhead"    // of CUDA: its context, kernels and workspaces, and what is lost between tensors; an estimate
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
	Rank   int    // of the agent's devices; 0: the worker
	Device string // where it computes: "cpu", "cuda:N"
	Parts  []Part // no more than one of a kind, none of 0 bytes
	Files  int64  // bytes on disk of one checkpoint
	Shares bool   // it adapts weights that another agent before it holds
	Levers []Lever
}

// Lever is a configuration key that a part of the memory is proportional to.
type Lever struct {
	Key   string // such as agents.planner.engine.slots
	Value int
	Part
}

// Count counts the need of the worker of an agent of the configuration whose model has the given architecture, which must be valid, and
// of whose parameters so many are trained. quantised is the size of weights that stay quantised, 0 where none do. The agents
// before it hold the weights that it adapts.
func Count(cfg *config.Config, a *config.Agent, model arch.Config, trained, quantised int64, before ...*config.Agent) Need {
	p := Need{Agent: a.Name, Device: a.Ranks()[0], Shares: len(before) > 0}
	taught := cfg.Learns(a) || cfg.ColdStarts(a)
	n := model.Parameters()
	p.hold(cfg, a, model, trained, quantised)
	p.Files = 4 * n
	if a.Adapts() {
		p.Files = 4 * trained
	}
	if taught {
		p.Files += 8 * trained
	}
	if s := cfg.Run.SaveDType; cfg.Learns(a) && !a.Adapts() && (s == "bf16" || s == "auto" && a.Model.Shape == nil) {
		p.Files += 2 * n // at most: weights saved in bf16 are there in fp32 too
	}
	p.compute(cfg, a, model, before...)
	p.record(a, model, trajectories(cfg, a))
	if cfg.Learns(a) || cfg.ColdStarts(a) { // a cold start that is stopped is saved from a copy, too
		p.Parts = append(p.Parts, Part{Snapshot, "cpu", 12 * trained})
	}
	return p
}

// CountFollower counts the need of the process of one of an agent's further devices, which samples and trains and does nothing else. The
// arguments are those of Count.
func CountFollower(cfg *config.Config, a *config.Agent, rank int, model arch.Config, trained, quantised int64) Need {
	p := Need{Agent: a.Name, Rank: rank, Device: a.Ranks()[rank]}
	p.hold(cfg, a, model, trained, quantised)
	p.compute(cfg, a, model)
	if !a.Engine.Remote() {
		p.record(a, model, int64(cfg.Conversations(a)))
	}
	return p
}

// compute adds what sampling and training need beside what is held, with the keys to which it is proportional.
func (n *Need) compute(cfg *config.Config, a *config.Agent, model arch.Config, before ...*config.Agent) {
	taught, size, gpu := cfg.Learns(a) || cfg.ColdStarts(a), valueSize(a), n.Device != "cpu"
	slots, context := cfg.Slots(a), a.ContextTokens(model.MaxPosition)
	prefix := "agents." + a.Name + ".engine."
	var activations int64
	if !a.Engine.Remote() { // else the server has the cache, and its own copy of the weights
		n.add(KVCache, cacheBytes(cfg, append(slices.Clone(before), a), model, size, gpu)-cacheBytes(cfg, before, model, size, gpu))
		activations = samplingActivations(model, int64(slots), int64(context), size, gpu)
		if given := a.Engine.CacheTokens; given > 0 {
			n.lever(prefix+"cache_tokens", given, KVCache)
		} else {
			n.lever(prefix+"slots", slots, KVCache)
		}
	}
	if taught {
		activations = max(activations, updateActivations(model, a, gpu))
	}
	if activations > 0 {
		n.add(Activations, activations)
	}
	if taught {
		n.trainingLever(a, context)
	}
	if gpu {
		n.add(Overhead, overhead(*n))
	}
}

// record adds the experts that are recorded of so many sequences of a mixture.
func (n *Need) record(a *config.Agent, model arch.Config, sequences int64) {
	context := a.ContextTokens(model.MaxPosition)
	routes := 2 * int64(model.RouteWidth()) * int64(context) * sequences
	if routes > 0 {
		part := Part{Routes, "cpu", routes}
		n.Parts = append(n.Parts, part)
		n.Levers = append(n.Levers, Lever{"agents." + a.Name + ".engine.context", context, part})
	}
}

// trainingLever is the key to which the activations of training are proportional.
func (n *Need) trainingLever(a *config.Agent, context int) {
	prefix := "agents." + a.Name + ".engine."
	if context > a.Engine.MicroBatchTokens {
		n.lever(prefix+"context", context, Activations)
	} else {
		n.lever(prefix+"micro_batch_tokens", a.Engine.MicroBatchTokens, Activations)
	}
}

// hold adds what every process of an agent holds: the weights, unless another agent does, those of the KL term, and of what training adds its
// share.
func (n *Need) hold(cfg *config.Config, a *config.Agent, model arch.Config, trained, quantised int64) {
	layout := model.Layout() // which takes long to make of a mixture
	half, parameters, size := a.ComputesBF16(), layout.Numel, valueSize(a)
	taught := cfg.Learns(a) || cfg.ColdStarts(a)
	inShares := a.Shard == "full" && taught
	rotary := 4 * int64(a.ContextTokens(model.MaxPosition)) * model.RotaryWidth()
	weights := parameters * size
	switch {
	case quantised > 0:
		weights = quantised
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
		n.add(Adapters, 4*trained)
	}
	if taught {
		share := longestShare(a, layout, trained)
		gradients := 4 * trained
		if half && !a.Adapts() || inShares {
			gradients = size*trained + 4*share
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
		if a.LoRA.Folder() != "" || cfg.KLToColdStart(a) { // a second set of adapters; else it is the base, which is there
			n.add(Reference, 4*trained)
		}
	default:
		reference := parameters * size
		if inShares {
			reference = gathered(a, layout)
		}
		n.add(Reference, reference+rotary)
	}
}

// gathered is the size of weights that no rank has whole: a share, the layer that is computed and the next without their experts, and what is in none.
func gathered(a *config.Agent, layout *arch.Layout) int64 {
	_, most := ranks.Arrange(model.Blocks(layout, true), model.LayersThere, ranks.Block.Gathered)
	return valueSize(a) * (longestShare(a, layout, layout.Numel) + most)
}

// oneLayer is how many gradients a rank computes at a time: of the longest layer, where ranks divide experts of its own alone, and of what is in
// none.
func oneLayer(a *config.Agent, layout *arch.Layout, inShares bool) int64 {
	of := len(a.Ranks())
	_, most := ranks.Arrange(model.Blocks(layout, inShares), 1, func(b ranks.Block) int64 { return b.Computed(0, of) })
	return most
}

// longestShare is the longest of an agent's ranks' shares of what is trained: of all parameters, or of adapters.
func longestShare(a *config.Agent, layout *arch.Layout, trained int64) int64 {
	blocks := []ranks.Block{{Run: ranks.Run{To: trained}}}
	if trained == layout.Numel {
		blocks = model.Blocks(layout, a.Shard == "full")
	}
	return ranks.ShareOf(blocks, 0, len(a.Ranks())).Numel()
}

// valueSize is the size in bytes of a value of weights in use, cache and activations.
func valueSize(a *config.Agent) int64 {
	if a.ComputesBF16() {
		return 2
	}
	return 4
}

// updateActivations is the memory of the activations of one micro-batch of an agent.
func updateActivations(model arch.Config, a *config.Agent, gpu bool) int64 {
	headRows, context := learner.HeadRows(gpu, !a.Adapts()), int64(a.ContextTokens(model.MaxPosition))
	training := trainingActivations(model, &a.Engine, context, headRows, valueSize(a), gpu)
	if a.Shard == "full" && model.Mixture != nil {
		training += carriedRows(model, &a.Engine, context, valueSize(a))
	}
	if a.ComputesBF16() && !a.Adapts() { // the head's gradient is added up in fp32
		training += 4 * int64(model.VocabSize) * int64(model.Hidden)
	}
	return training
}

// trajectories is how many sequences of an agent have recorded experts at once: those of the steps that are rolled out, of a
// sub-agent as many as are aligned, and the engine's conversations. Servers record none.
func trajectories(cfg *config.Config, a *config.Agent) int64 {
	if a.Engine.Remote() {
		return 0
	}
	rollouts := (1 + cfg.GRPO.MaxLag) * int64(cfg.Task.QueriesPerStep*cfg.GRPO.Rollouts)
	if a.Role == "sub" {
		rollouts *= int64(a.Align.D)
	}
	if a.Limits.Fold.At > 0 { // a stretch has a turn at least
		rollouts *= int64(a.Limits.MaxTurns)
	}
	return rollouts + int64(cfg.Conversations(a))
}

// What a GPU's context, the kernels of LibTorch and ours, and the workspaces of cuBLAS take, whatever the model.
const cudaContext = 768 << 20

// overhead is what an agent takes of a GPU beside its tensors. Agents that share weights share a process. The allocator cannot use all that lies
// between tensors of different sizes: a twentieth, where its segments grow.
func overhead(n Need) int64 {
	context := int64(cudaContext)
	if n.Shares {
		context = 0
	}
	return context + n.sum(func(p Part) bool { return p.Device == n.Device })/20
}

// keep adds what the optimizer keeps between updates, where the agent has it.
func (n *Need) keep(a *config.Agent, kind Kind, bytes int64) {
	if a.State == "host" {
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

// Of is the number of bytes that the agent needs for a purpose.
func (n Need) Of(kind Kind) int64 { return n.sum(func(part Part) bool { return part.Kind == kind }) }

func (n Need) sum(of func(Part) bool) (bytes int64) {
	for _, part := range n.Parts {
		if of(part) {
			bytes += part.Bytes
		}
	}
	return bytes
}

// cacheBytes is the memory of the key-value cache of an engine that samples for several agents. Layers that see a window keep no more
// than the windows.
func cacheBytes(cfg *config.Config, agents []*config.Agent, c arch.Config, size int64, gpu bool) (bytes int64) {
	cache := cfg.CacheOf(agents, c.MaxPosition)
	for _, g := range c.CacheGroups() {
		blocks := int64(g.Blocks(cache.Tokens, cache.Conversations, arch.PassRows(gpu)))
		bytes += 2 * int64(len(g.Layers)) * blocks * arch.CacheBlock * kvWidth(c) * size
	}
	return bytes
}

func kvWidth(c arch.Config) int64  { return int64(c.KVHeads) * int64(c.HeadDim) }
func qkvWidth(c arch.Config) int64 { return int64(c.Heads)*int64(c.HeadDim) + 2*kvWidth(c) }

// layerValues counts the values of a token in one layer: two sums of the residual stream, what goes into or comes out of each
// norm of its width, the product of queries, keys and values and the heads made of it, the attention's output and log-sum-exp, and those of
// the MLP.
func layerValues(c arch.Config) int64 {
	before, after, _ := c.BlockNorms()
	return int64(2+before+after)*int64(c.Hidden) + 2*qkvWidth(c) + int64(c.Heads)*int64(c.HeadDim) + int64(c.Heads) + mlpValues(c) + extraValues(c)
}

// extraValues counts the values that only some families have: the product in another order, heads before their norms, queries before they
// grow, and terms of the residual stream before they are scaled.
func extraValues(c arch.Config) (n int64) {
	if c.RotaryPairs() {
		n += qkvWidth(c)
	}
	if c.NormsAfterRope() {
		n += qkvWidth(c) - kvWidth(c)
	}
	if c.QueryGrowth != (arch.QueryGrowth{}) {
		n += int64(c.Heads) * int64(c.HeadDim)
	}
	if c.ResidualScale() != 1 {
		n += 2 * int64(c.Hidden)
	}
	return n
}

// keptValues counts those that are kept for the backward pass, which makes the others again: what comes out of a norm before
// attention or the MLP, and the product of an MLP's gate. The product of queries, keys and values is needed for norms of heads alone.
func keptValues(c arch.Config) int64 {
	before, _, heads := c.BlockNorms()
	kept := layerValues(c) - int64(before)*int64(c.Hidden)
	if !heads {
		kept -= qkvWidth(c)
	}
	if c.Mixture == nil {
		kept -= int64(c.FFN)
	}
	return kept
}

// mlpValues counts the gate, up and product of an MLP. A mixture has them for each expert that a token goes through, with the
// experts' inputs and outputs beside them and the router's logits.
func mlpValues(c arch.Config) int64 {
	dense, m := 3*int64(c.FFN), c.Mixture
	if m == nil {
		return dense
	}
	experts := int64(m.PerToken)*(3*int64(m.FFN)+2*int64(c.Hidden)) + int64(m.Experts)
	if c.RoutedLayers() < c.Layers {
		return max(dense, experts)
	}
	return experts
}

// trainingActivations is the memory of the activations of one micro-batch, forward and backward. A trajectory that is longer is
// a micro-batch of its own.
func trainingActivations(c arch.Config, e *config.Engine, context, headRows, size int64, gpu bool) int64 {
	tokens := max(int64(e.MicroBatchTokens), context)
	layers := int64(c.Layers) * keptValues(c)
	if e.CheckpointActivations {
		const ends = 3 // the embeddings beside the layers' outputs, and the gradients at both ends of a layer
		layers = (int64(c.Layers)+ends)*int64(c.Hidden) + layerValues(c)
	}
	if size == 4 { // our own attention's backward pass: keys and values once more, and parts of their gradients, four times their size
		layers += 10 * kvWidth(c)
	} else { // LibTorch's, of one layer: the keys and values that segments see, shared ones as often as they are seen, and their gradients
		const seen = 4 // times
		heads := int64(c.Heads) * int64(c.HeadDim)
		layers += 4*seen*kvWidth(c) + 4/size*heads // and a sum of the queries' in float32
		if c.Heads > c.KVHeads {
			layers += 2 * seen * heads // those of each head, before they are added up for the key's
		}
	}
	// The layer whose backward pass runs also needs the gradients of its values. Logits exist as values and as gradients; on a GPU they
	// become them in place, which a sequence-level ratio and a cold start copy where that is bf16.
	logit := int64(2 * 4)
	if gpu {
		logit = 4 + size%4
	}
	return tokens*(layers+layerValues(c))*size + logit*min(headRows, tokens)*int64(c.VocabSize)
}

// carriedRows is the memory of the rows that travel to the experts of other ranks and back in a layer's backward pass, beside what experts make of
// them: hidden states and two gradients, at home and at the experts, to which as many come as go if all experts are chosen alike.
func carriedRows(c arch.Config, e *config.Engine, context, size int64) int64 {
	return max(int64(e.MicroBatchTokens), context) * int64(c.Mixture.PerToken) * 2 * 3 * int64(c.Hidden) * size
}

// samplingActivations is the memory of the activations of one pass over all slots, or over as many rows of prompts as a pass has. In bf16 the cached keys and values of prompts are gathered, too, for one
// layer and a few prompts at once.
func samplingActivations(c arch.Config, slots, context, size int64, gpu bool) int64 {
	values := max(slots, int64(arch.PassRows(gpu)))*layerValues(c)*size + slots*4*int64(c.VocabSize)
	if size != 4 {
		const keys = 1 << 16 // those of one prompt may be more
		values += 2 * min(slots*context, max(keys, context)) * kvWidth(c) * size
	}
	return values
}
