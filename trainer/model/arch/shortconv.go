package arch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ShortConv lists the layers that have a gated short convolution in place of attention.
type ShortConv struct {
	Layers []bool // one entry per layer
	Width  int    // conv_L_cache: a token reads its own value and the Width-1 values before it
	Bias   bool   // conv_bias: of the convolution and of both its projections
}

// maxConvWidth is the largest width that the kernels compute.
const maxConvWidth = 8

// convolution is the type of such a layer in layer_types.
const convolution = "conv"

func (s *ShortConv) settings() []setting {
	return []setting{
		{json: "conv_L_cache", gguf: "shortconv.l_cache", to: &s.Width, most: maxConvWidth, required: true},
		{json: "conv_bias", to: &s.Bias},
	}
}

// orDefault returns s, or the default settings if s is nil because no layer convolves.
func (s *ShortConv) orDefault() *ShortConv {
	if s == nil {
		return &ShortConv{Width: 3}
	}
	return s
}

func (s *ShortConv) validate(c Config, f *family) error {
	switch {
	case s == nil:
		return nil
	case !f.has.shortConv:
		return fmt.Errorf("layer_types has %s: model_type %s has no such layers", convolution, f.name)
	case len(s.Layers) != c.Layers:
		return fmt.Errorf("layer_types lists %d types for %d layers", len(s.Layers), c.Layers)
	case c.Hidden > maxHidden/3:
		return errors.New("hidden_size is too large for a convolution's product")
	}
	return nil
}

// shortConv adds the projection of a convolution's gates and inputs, its taps, and the projection into the residual stream.
func (l *layer) shortConv() {
	d, s := l.c.Hidden, l.c.ShortConv
	l.linear("conv_in", Matrix, d, module{name: "conv.in_proj", gguf: "shortconv.in_proj", rows: 3 * d, bias: s.Bias})
	taps := l.tensor(module{name: "conv.conv", gguf: "shortconv.conv", rows: d}, "weight", 1)
	taps.Shape = append(taps.Shape, int64(s.Width))
	l.add("conv", Taps, taps)
	if s.Bias {
		l.add("conv_bias", Bias, l.tensor(module{name: "conv.conv", gguf: "shortconv.conv", rows: d}, "bias", 0))
	}
	l.linear("conv_out", Residual, d, module{name: "conv.out_proj", gguf: "shortconv.out_proj", rows: d, bias: s.Bias})
}

// readConvolutions reads the keys of both families of LFM2. Some keys have other names in other families. A convolution is in the
// layers that layer_types names, or that full_attn_idxs omits. If both are absent, all layers attend.
func readConvolutions(k *keys, c *Config) {
	c.RMSEps = 1e-5
	k.float("norm_eps", &c.RMSEps)
	k.booleanOrNull("tie_embedding", &c.Tied)
	s := &ShortConv{Width: 3}
	k.read(s.settings())
	if convolves, given := readLayerTypes(k, c, convolution); given || k.err != nil {
		s.Layers = convolves
	} else if k.values["full_attn_idxs"] != nil {
		attends := k.integers("full_attn_idxs")
		s.Layers = eachLayer(c.Layers, func(i int) bool { return !slices.Contains(attends, i) })
	}
	if slices.Contains(s.Layers, true) {
		c.ShortConv = s
	}
}

// shortConvGGUF reads which layers have a convolution: those without heads of keys. llama.cpp has no biases and no width of 1, and reads a
// window of the other layers.
func shortConvGGUF(k *keys, c *Config) {
	k.require("attention.head_count_kv")
	window := 0
	if k.integer("attention.sliding_window", &window); window != 0 {
		k.fail("attention.sliding_window is %d: model_type %s has no windows", window, c.Family)
	}
	if c.Heads*c.HeadDim != c.Hidden {
		k.fail("attention.key_length is %d: llama.cpp needs embedding_length / attention.head_count", c.HeadDim)
	}
	s := &ShortConv{}
	if k.read(s.settings()); s.Width < 2 {
		k.fail("shortconv.l_cache is %d: must be at least 2", s.Width)
	}
	c.KVHeads = 0
	for i, heads := range byLayerGGUF(k, "attention.head_count_kv", c.Layers) {
		s.Layers = append(s.Layers, heads == 0)
		if heads == 0 {
			c.ShortConv = s
		} else if c.KVHeads = cmp.Or(c.KVHeads, heads); heads != c.KVHeads {
			k.fail("attention.head_count_kv is %d for layer %d and %d for an earlier one", heads, i, c.KVHeads)
		}
	}
	c.KVHeads = cmp.Or(c.KVHeads, c.Heads)
}

// writeShortConvGGUF writes which layers have a convolution.
func writeShortConvGGUF(c Config, set func(key string, value any)) {
	heads := make([]int64, c.Layers)
	for i := range heads {
		if !c.Layer(i).Convolves() {
			heads[i] = int64(c.KVHeads)
		}
	}
	set("attention.head_count_kv", heads)
}
