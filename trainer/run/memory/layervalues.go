package memory

import "github.com/mgrpo/mgrpo/trainer/model/arch"

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
	if c.Features().RotaryPairs {
		n += qkvWidth(c)
	}
	if c.Features().NormsAfterRope {
		n += qkvWidth(c) - kvWidth(c)
	}
	if c.Queries.Growth != (arch.QueryGrowth{}) {
		n += queryWidth(c)
	}
	if c.Multipliers.ResidualScale() != 1 {
		n += 2 * int64(c.Hidden)
	}
	if c.Features().ValueNorms {
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

// The following functions return the largest width over the layers: of keys, of queries, of queries, keys and values together, and
// of the MLP.
func kvWidth(c arch.Config) int64 { return widestLayer(c, arch.LayerConfig.KVWidth) }
func queryWidth(c arch.Config) int64 {
	return int64(c.Heads) * widestLayer(c, arch.LayerConfig.HeadDim)
}
func qkvWidth(c arch.Config) int64 { return queryWidth(c) + 2*kvWidth(c) }
func ffnWidth(c arch.Config) int64 { return widestLayer(c, arch.LayerConfig.FFN) }

func widestLayer(c arch.Config, of func(arch.LayerConfig) int) (most int64) {
	for i := range c.Layers {
		most = max(most, int64(of(c.Layer(i))))
	}
	return most
}

// unlayeredValues guesses the values of a token in a model whose layers are unknown. It is two
// for each row of matrices whose width is the hidden size, as in a decoder.
func unlayeredValues(c arch.Config) int64 { return 2 * c.Parameters() / int64(c.Hidden) }
