package memory

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

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
		// Rows travel to experts of other ranks and back in a layer's backward pass: hidden states and two gradients, at both ends.
		// All experts are assumed to be chosen equally often.
		layer += tokens * int64(model.Mixture.PerToken) * 2 * 3 * int64(model.Hidden) * size
	}
	if gpu {
		return kept + max(head, layer)
	}
	return kept + head + layer
}

// layerActivations returns the memory of the layers of one micro-batch: the values that they
// keep for the backward pass, and the need of one layer's backward pass.
func layerActivations(c arch.Config, e *config.Engine, tokens, size int64) (kept, layer int64) {
	if !arch.Layered(c) {
		return tokens * unlayeredValues(c) * size, 0
	}
	values, once, recurrent := int64(c.Layers)*keptValues(c), layerValues(c), int64(0) // the gradients of its values
	for i := range c.Layers {
		if c.Layer(i).Recurs() && !e.CheckpointActivations {
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
		const keys = 1 << 16 // positions gathered at once; a single prompt may have more
		values += 2 * min(slots*context, max(keys, context)) * kvWidth(c) * size
	}
	return values
}

// cacheBytes returns the memory of the key-value cache of an engine that samples for several agents. Layers with a
// window keep at most a window of each conversation. size is the size of a value of the model in bytes, and keys the size of a
// cached key or value.
func cacheBytes(cfg *config.Config, agents []*config.Agent, c arch.Config, size, keys int64, gpu bool) (bytes int64) {
	cache := cfg.CacheOf(agents, c.MaxPosition)
	for _, g := range c.CacheGroups() {
		blocks := int64(g.Blocks(cache.Tokens, cache.Conversations, arch.PassRows(gpu)))
		for _, layer := range g.Layers {
			each := keys
			if c.Layer(layer).Convolves() { // the inputs of its convolution
				each = size
			}
			bytes += blocks * arch.CacheBlock * int64(c.Layer(layer).CacheWidth()) * each
		}
	}
	return bytes
}

// stateBytes returns the memory of the recurrent states of an engine that samples for several agents.
func stateBytes(cfg *config.Config, agents []*config.Agent, c arch.Config, size int64) int64 {
	cache := cfg.CacheOf(agents, c.MaxPosition)
	var states, inputs int64 // values of a sequence in float32 states and in inputs of convolutions
	for i := range c.Layers {
		if g := c.GatedDelta; c.Layer(i).Recurs() {
			states += int64(g.ValueHeads) * int64(g.KeyDim) * int64(g.ValueDim)
			inputs += int64(g.Width-1) * int64(g.Channels())
		}
	}
	return int64(arch.RecurrentStates(cache.Slots, cache.Conversations)) * (4*states + size*inputs)
}
