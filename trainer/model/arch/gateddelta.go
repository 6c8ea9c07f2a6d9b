package arch

import (
	"errors"
	"fmt"
)

// GatedDelta lists the layers that have a gated delta rule in place of attention, and its sizes.
type GatedDelta struct {
	Layers               []bool // one entry per layer
	KeyHeads, ValueHeads int    // linear_num_key_heads, linear_num_value_heads
	KeyDim, ValueDim     int    // linear_key_head_dim, linear_value_head_dim
	Width                int    // linear_conv_kernel_dim: of the convolution over queries, keys and values
}

// maxDeltaDim is the largest size of a head that the kernels compute.
const maxDeltaDim = 256

// linearAttention is the type of such a layer in layer_types.
const linearAttention = "linear_attention"

func (g *GatedDelta) settings() []setting {
	return []setting{
		{json: "linear_num_key_heads", gguf: "ssm.group_count", to: &g.KeyHeads, most: maxHeads, required: true},
		{json: "linear_num_value_heads", gguf: "ssm.time_step_rank", to: &g.ValueHeads, most: maxHeads, required: true},
		{json: "linear_key_head_dim", gguf: "ssm.state_size", to: &g.KeyDim, most: maxDeltaDim, required: true},
		{json: "linear_value_head_dim", to: &g.ValueDim, most: maxDeltaDim},
		{json: "linear_conv_kernel_dim", gguf: "ssm.conv_kernel", to: &g.Width, most: maxConvWidth, required: true},
	}
}

// Keys returns the number of values of all key heads. The query heads have the same number.
func (g *GatedDelta) Keys() int { return g.KeyHeads * g.KeyDim }

// Values returns the number of values of all value heads.
func (g *GatedDelta) Values() int { return g.ValueHeads * g.ValueDim }

// Channels returns the number of channels of the convolution: queries, keys and values.
func (g *GatedDelta) Channels() int { return 2*g.Keys() + g.Values() }

// GatedAttention reports whether the result of attention is multiplied by the sigmoid of a
// gate, which the projection of queries computes. The projection's rows are a head's queries,
// then that head's gates.
func (c Config) GatedAttention() bool { return c.GatedDelta != nil }

// RecurrentStates returns the number of states of an engine: one for each sequence in flight,
// and one for each conversation that waits, or for a prefix that others may continue.
func RecurrentStates(slots, conversations int) int { return slots + max(slots, conversations) }

// defaultGatedDelta returns the rules of a configured shape.
func defaultGatedDelta(c Config) *GatedDelta {
	return &GatedDelta{Layers: eachLayer(c.Layers, func(i int) bool { return (i+1)%4 != 0 && i != c.Layers-1 }),
		KeyHeads: c.Heads, ValueHeads: c.Heads, KeyDim: c.HeadDim, ValueDim: c.HeadDim, Width: 4}
}

func (g *GatedDelta) validate(c Config, f *family) error {
	switch {
	case g != nil && !f.has.gatedDelta:
		return fmt.Errorf("model_type %s has no layers of type %s", f.name, linearAttention)
	case g == nil && f.has.gatedDelta:
		return fmt.Errorf("model_type %s needs layers of type %s", f.name, linearAttention)
	case g == nil:
		return nil
	case len(g.Layers) != c.Layers:
		return fmt.Errorf("layer_types lists %d types for %d layers", len(g.Layers), c.Layers)
	}
	attends := false
	for i := range c.Layers {
		attends = attends || c.Layer(i).Attends()
	}
	switch {
	case g.ValueHeads%g.KeyHeads != 0:
		return fmt.Errorf("linear_num_value_heads %d is not a multiple of linear_num_key_heads %d", g.ValueHeads, g.KeyHeads)
	case g.Channels()+g.Values()+2*g.ValueHeads > maxHidden:
		return errors.New("the product of a layer's linear attention is too wide")
	case !attends:
		return fmt.Errorf("layer_types has no %s layer: at least one is needed", fullAttention)
	}
	return nil
}

// gatedDelta adds the projections of a gated delta rule, its convolution, decays and norm, and the projection into the residual stream.
func (l *layer) gatedDelta() {
	d, g := l.c.Hidden, l.c.GatedDelta
	part := func(name, gguf string, rows int, tiled Tiling) module {
		return module{name: "linear_attn." + name, gguf: gguf, rows: rows, tiled: tiled}
	}
	values, heads, afterKeys := g.tiling(g.ValueDim, 0), g.tiling(1, 0), g.tiling(g.ValueDim, 2*g.Keys())
	l.linear("delta_in", Matrix, d, part("in_proj_qkv", "attn_qkv", g.Channels(), afterKeys), part("in_proj_z", "attn_gate", g.Values(), values),
		part("in_proj_b", "ssm_beta", g.ValueHeads, heads), part("in_proj_a", "ssm_alpha", g.ValueHeads, heads))
	taps := l.tensor(part("conv1d", "ssm_conv1d", g.Channels(), afterKeys), "weight", 1)
	taps.Shape = append(taps.Shape, int64(g.Width))
	l.add("conv", Taps, taps)
	l.add("a_log", Bias, l.vector("linear_attn.A_log", "ssm_a", g.ValueHeads, Tensor{Tiled: heads, GGUFDecay: true}))
	l.add("dt_bias", Decay, l.vector("linear_attn.dt_bias", "ssm_dt.bias", g.ValueHeads, Tensor{Tiled: heads}))
	l.add("delta_norm", Scale, l.tensor(part("norm", "ssm_norm", g.ValueDim, Tiling{}), "weight", 0))
	values.Columns = values.Groups != 0
	l.linear("delta_out", Residual, g.Values(), part("out_proj", "ssm_out", d, values))
}

// vector returns t with the names and the shape of a parameter that is neither a weight nor a bias of a module.
func (l *layer) vector(name, gguf string, size int, t Tensor) Tensor {
	t.Name, t.GGUF, t.Shape = fmt.Sprintf("model.layers.%d.%s", l.index, name), fmt.Sprintf("blk.%d.%s", l.index, gguf), []int64{int64(size)}
	return t
}

// readGatedDelta reads the sizes of gated delta rules, and which layers have one: those that layer_types names, or all
// except every full_attention_interval-th.
func readGatedDelta(k *keys, c *Config) {
	g := &GatedDelta{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Width: 4}
	k.read(g.settings())
	c.GatedDelta = g
	if recurs, given := readLayerTypes(k, c, linearAttention); given || k.err != nil {
		g.Layers = recurs
		return
	}
	full := k.interval("full_attention_interval", 4)
	g.Layers = eachLayer(c.Layers, func(i int) bool { return (i+1)%full != 0 })
}
