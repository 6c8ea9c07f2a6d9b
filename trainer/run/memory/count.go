// Package memory counts the memory that the agents of a run will need, before anything is allocated, and compares it
// with the free memory of each device. The start of a run, `mgrpo doctor` and the error of a failed allocation use
// these counts; no other package counts memory.
package memory

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

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
	Activations Kind = "activations" // of a micro-batch in training or of a pass of sampling, the larger of the two; an estimate
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
	Rank   int    // of the agent's devices; 0: the worker
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

// Count counts the need of an agent's worker. The agents `before` it hold the weights that it adapts.
func Count(cfg *config.Config, a *config.Agent, m Model, before ...*config.Agent) Need {
	p := Need{Agent: a.Name, Device: a.Ranks()[0], Shares: len(before) > 0}
	n := m.Arch.Parameters()
	p.hold(cfg, a, m)
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
	p.hold(cfg, a, m)
	p.compute(cfg, a, m.Arch)
	if !a.Engine.Remote() {
		p.record(a, m.Arch, int64(cfg.Conversations(a)))
	}
	return p
}

// compute adds the needs of sampling and training to the memory that is held. It names the keys
// that scale them.
func (n *Need) compute(cfg *config.Config, a *config.Agent, model arch.Config, before ...*config.Agent) {
	taught, size, gpu := cfg.Learns(a) || cfg.ColdStarts(a), valueSize(a), n.Device != "cpu"
	slots, context := cfg.Slots(a), a.ContextTokens(model.MaxPosition)
	prefix := "agents." + a.Name + ".engine."
	var activations int64
	if !a.Engine.Remote() { // otherwise the server has the cache and its own copy of the weights
		if cache := cacheBytes(cfg, append(slices.Clone(before), a), model, size, gpu) - cacheBytes(cfg, before, model, size, gpu); cache > 0 {
			n.add(KVCache, cache)
		}
		activations = samplingActivations(model, int64(slots), int64(context), size, gpu)
		if given := a.Engine.CacheTokens; given > 0 {
			n.lever(prefix+"cache_tokens", given, KVCache)
		} else {
			n.lever(prefix+"slots", slots, KVCache)
		}
		if states := stateBytes(cfg, append(slices.Clone(before), a), model, size) - stateBytes(cfg, before, model, size); states > 0 {
			n.add(States, states)
			n.lever(prefix+"slots", slots, States)
		}
	}
	if taught {
		activations = max(activations, updateActivations(cfg, a, model, gpu))
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

// record adds the experts recorded for the given number of a mixture's sequences.
func (n *Need) record(a *config.Agent, model arch.Config, sequences int64) {
	context := a.ContextTokens(model.MaxPosition)
	routes := 2 * int64(model.RouteWidth()) * int64(context) * sequences
	if routes > 0 {
		part := Part{Routes, "cpu", routes}
		n.Parts = append(n.Parts, part)
		n.Levers = append(n.Levers, Lever{"agents." + a.Name + ".engine.context", context, part})
	}
}

// trainingLever adds the key that scales the activations of training.
func (n *Need) trainingLever(a *config.Agent, context int) {
	prefix := "agents." + a.Name + ".engine."
	if context > a.Engine.MicroBatchTokens {
		n.lever(prefix+"context", context, Activations)
	} else {
		n.lever(prefix+"micro_batch_tokens", a.Engine.MicroBatchTokens, Activations)
	}
}

// hold adds the memory of every process of an agent. Each holds the weights, unless an earlier
// agent holds them, the weights of the KL term, and its share of the buffers for training.
func (n *Need) hold(cfg *config.Config, a *config.Agent, m Model) {
	layout := m.Arch.Layout() // slow to make for a mixture
	half, parameters, size := a.ComputesBF16(), layout.Numel, valueSize(a)
	taught := cfg.Learns(a) || cfg.ColdStarts(a)
	inShares := a.Shard == "full" && taught
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
	if taught {
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
		if a.LoRA.Folder() != "" || cfg.KLToColdStart(a) { // a second set of adapters; otherwise it is the base, which is loaded already
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

// oneLayer returns the number of gradients that a rank computes at a time. They are of the longest
// layer (only its own experts, where ranks divide experts), and of weights outside of layers.
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

// valueSize returns the size in bytes of a value of weights in use, cache and activations.
func valueSize(a *config.Agent) int64 {
	if a.ComputesBF16() {
		return 2
	}
	return 4
}

// updateActivations returns the memory of the activations of one micro-batch of an agent. The head's logits are gone when the backward pass
// reaches the layers. LibTorch's allocator on a GPU then gives their memory to a layer. The C library keeps it, so a CPU has both.
func updateActivations(cfg *config.Config, a *config.Agent, model arch.Config, gpu bool) int64 {
	context, size := int64(a.ContextTokens(model.MaxPosition)), valueSize(a)
	tokens := max(int64(a.Engine.MicroBatchTokens), context) // a longer trajectory is a micro-batch of its own
	logit := int64(2 * 4)                                    // the value and its gradient
	if gpu {
		logit = 4 // the gradient replaces the value
		if size == 2 && (cfg.ColdStarts(a) || !cfg.GRPO.Ratio.TokenLevel()) {
			logit += 2 // it is copied
		}
	}
	head := logit * min(learner.HeadRows(gpu, !a.Adapts()), tokens) * int64(model.VocabSize)
	if a.ComputesBF16() && !a.Adapts() { // its gradient is added up in fp32
		head += 4 * int64(model.VocabSize) * int64(model.Hidden)
	}
	kept, layer := layerActivations(model, &a.Engine, tokens, size)
	if a.Shard == "full" && model.DividesExperts() {
		layer += carriedRows(model, tokens, size)
	}
	if gpu {
		return kept + max(head, layer)
	}
	return kept + head + layer
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

// keep adds buffers that the optimizer keeps between updates, on the device where the agent has them.
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

// cacheBytes returns the memory of the key-value cache of an engine that samples for several agents. Layers with a
// window keep at most the windows.
func cacheBytes(cfg *config.Config, agents []*config.Agent, c arch.Config, size int64, gpu bool) (bytes int64) {
	cache := cfg.CacheOf(agents, c.MaxPosition)
	for _, g := range c.CacheGroups() {
		blocks := int64(g.Blocks(cache.Tokens, cache.Conversations, arch.PassRows(gpu)))
		for _, layer := range g.Layers {
			bytes += blocks * arch.CacheBlock * int64(c.CacheWidth(layer)) * size
		}
	}
	return bytes
}

// stateBytes returns the memory of the recurrent states of an engine that samples for several agents.
func stateBytes(cfg *config.Config, agents []*config.Agent, c arch.Config, size int64) int64 {
	cache := cfg.CacheOf(agents, c.MaxPosition)
	states, inputs := c.RecurrentState()
	return int64(arch.RecurrentStates(cache.Slots, cache.Conversations)) * (4*states + size*inputs)
}

// layerValues counts the values of a token in one layer. There are two sums of the residual stream,
// and the inputs or outputs of each norm of that width. Then there are the product of queries, keys
// and values and the heads made of it, the attention's output and log-sum-exp, and the values of
// the MLP. A convolution has its product of three values for each channel, and its output.
func layerValues(c arch.Config) int64 {
	if !arch.Layered(c) {
		return unlayeredValues(c)
	}
	before, after, _ := c.BlockNorms()
	operator := 2*qkvWidth(c) + queryWidth(c) + int64(c.Heads)
	if c.ShortConv != nil {
		operator = max(operator, 4*int64(c.Hidden))
	}
	if c.GatedAttention() { // gates in the product, alone and next to the result, and the gated result; the product in another order
		operator += 5*queryWidth(c) + qkvWidth(c)
	}
	if c.GatedDelta != nil {
		operator = max(operator, recurrentValues(c.GatedDelta))
	}
	return int64(2+before+after)*int64(c.Hidden) + operator + mlpValues(c) + extraValues(c)
}

// recurrentValues counts the values of a token in a gated delta rule. There are its product, the product's queries, keys and
// values alone, and their convolution. Then there is the result, before and after its norm, next to its gates, and gated.
func recurrentValues(g *arch.GatedDelta) int64 {
	return 3*int64(g.Channels()) + 6*int64(g.Values()) + 2*int64(g.ValueHeads)
}

// recurrentBytes returns the float32 bytes of a token in a gated delta rule, for its backward pass: residuals, and states at the ends of
// pieces. A piece has up to 64 tokens, but a short sequence, and a beginning that several share, are pieces of their own.
func recurrentBytes(g *arch.GatedDelta) int64 {
	const pieces, tokens = 3, 64
	if g == nil {
		return 0
	}
	return 4 * (int64(g.Values()) + pieces*int64(g.ValueHeads)*int64(g.KeyDim)*int64(g.ValueDim)/tokens)
}

// extraValues counts the values that only some families have. They are the product in another order,
// heads before their norms, and queries before they are scaled. Further ones are terms of the residual
// stream before they are scaled, values before their norm, and the results of adding a layer's embedding.
func extraValues(c arch.Config) (n int64) {
	if c.RotaryPairs() {
		n += qkvWidth(c)
	}
	if c.NormsAfterRope() {
		n += qkvWidth(c) - kvWidth(c)
	}
	if c.Queries.Growth != (arch.QueryGrowth{}) {
		n += queryWidth(c)
	}
	if c.ResidualScale() != 1 {
		n += 2 * int64(c.Hidden)
	}
	if c.ValueNorms() {
		n += kvWidth(c) + 2*int64(c.Hidden) // and two sums for the factor of a layer
	}
	if width := int64(c.LayerInputs()); width > 0 {
		n += 5*width + 2*int64(c.Hidden) // gate, GELU, embedding, product, and the projection
	}
	return n
}

// keptValues counts the values that are kept for the backward pass, which recomputes the others: outputs of norms
// before attention or the MLP, and the product of an MLP's gate. The product of queries, keys and values is kept only
// for norms of heads.
func keptValues(c arch.Config) int64 {
	before, _, heads := c.BlockNorms()
	kept := layerValues(c) - int64(before)*int64(c.Hidden)
	if !heads {
		kept -= qkvWidth(c)
	}
	if c.Mixture == nil || c.ExpertsBesideMLP() {
		kept -= ffnWidth(c)
	}
	return kept
}

// mlpValues counts the gate, up and product of an MLP. A mixture has them for each expert of a token, and in addition
// the experts' inputs and outputs and the router's logits.
func mlpValues(c arch.Config) int64 {
	dense, m := 3*ffnWidth(c), c.Mixture
	if m == nil {
		return dense
	}
	experts := int64(m.PerToken)*(3*int64(m.FFN)+2*int64(c.Hidden)) + int64(m.Experts)
	if c.ExpertsBesideMLP() {
		return dense + experts + 4*int64(c.Hidden) // and the router's input, in float32 and normalised, and the sum of both
	}
	if m.Shared > 0 {
		experts += 3*int64(m.Shared) + 2*int64(c.Hidden)
	}
	if c.RoutedLayers() < c.Layers {
		return max(dense, experts)
	}
	return experts
}

// layerActivations returns the memory of the layers of one micro-batch: the values that they
// keep for the backward pass, and the need of one layer's backward pass.
func layerActivations(c arch.Config, e *config.Engine, tokens, size int64) (kept, layer int64) {
	if !arch.Layered(c) {
		return tokens * unlayeredValues(c) * size, 0
	}
	values, once, recurrent := int64(c.Layers)*keptValues(c), layerValues(c), int64(0) // the gradients of its values
	for i := range c.Layers {
		if c.Recurs(i) && !e.CheckpointActivations {
			recurrent++
		}
	}
	if e.CheckpointActivations {
		const ends = 3 // the embeddings in addition to the layers' outputs, and the gradients at both ends of a layer
		values = (int64(c.Layers) + ends) * int64(c.Hidden)
		once += layerValues(c)
	}
	if size == 4 { // our own attention's backward pass: keys and values once more, and parts of their gradients, four times their size
		once += 10 * kvWidth(c)
	} else { // LibTorch's: the keys and values that segments attend to, once for each segment, and their gradients
		const seen = 4 // times
		heads := queryWidth(c)
		once += 4*seen*kvWidth(c) + 4/size*heads // and a sum of the queries' gradients in float32
		if c.Heads > c.KVHeads {
			once += 2 * seen * heads // the gradients of each head, before they are added up for the key's
		}
	}
	states := recurrentBytes(c.GatedDelta) // the layer whose backward pass runs has them twice
	return tokens * (values*size + recurrent*states), tokens * (once*size + 2*states)
}

// carriedRows returns the memory of the rows that travel to experts of other ranks and back in
// a layer's backward pass, in addition to the experts' values. The rows are hidden states and
// two gradients, at both ends. It assumes that all experts are chosen equally often.
func carriedRows(c arch.Config, tokens, size int64) int64 {
	return tokens * int64(c.Mixture.PerToken) * 2 * 3 * int64(c.Hidden) * size
}

// samplingActivations returns the memory of the activations of one pass over all slots, or over the largest number of
// prompt rows in a pass. In bf16 the cached keys and values of prompts are gathered, too, for one layer and a few
// prompts at once.
func samplingActivations(c arch.Config, slots, context, size int64, gpu bool) int64 {
	rows := max(slots, int64(arch.PassRows(gpu)))
	if !arch.Cached(c) {
		rows = max(rows, context) // sequences are computed whole
	}
	values := rows*layerValues(c)*size + slots*4*int64(c.VocabSize)
	if size != 4 {
		const keys = 1 << 16 // those of one prompt may be more
		values += 2 * min(slots*context, max(keys, context)) * kvWidth(c) * size
	}
	return values
}
