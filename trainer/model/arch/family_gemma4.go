package arch

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// Gemma4 is the family of the text models of Gemma 4. It adds to Gemma 3 norms of values, larger heads in layers without a
// window, and a constant factor of each layer's result. It also adds shared keys and values, and an embedding for each layer.
const Gemma4 = "gemma4_text"

func init() {
	register(&family{
		name:         Gemma4,
		architecture: "Gemma4ForCausalLM",
		defaults:     gemmaDefaults(262144, 30),
		has:          familyKeys{attentionBias: true, windows: true, byLayer: true},
		Features:     Features{ValueNorms: true, GELU: true},
		read:         readGemma4,
		write:        writeGemma4,
		layer: func(l *layer, c Config) {
			l.gemma(c)
			if c.Mixture != nil {
				l.expertsBesideMLP(c.Mixture)
			}
			l.mlpNorm()
			l.inputOfLayer()
			l.factor()
		},
		gguf: &gguf{name: "gemma4", fraction: true, read: gemma4GGUF, readOnly: true},
	})
}

// readGemma4 reads the keys that only Gemma 4 has.
func readGemma4(k *keys, c *Config) {
	gemma4Windows(k, c)
	gemma4Rope(k, c)
	refuseBidirectional(k)
	readBesideExperts(k, c)
	k.floatOrNull("final_logit_softcapping", &c.LogitCap)
	b := &ByLayer{GlobalHeadDim: 512, Inputs: 256, InputsVocab: 262144}
	k.integer("global_head_dim", &b.GlobalHeadDim)
	k.read(b.settings())
	if b.KeysAreValues {
		k.integerOrNull("num_global_key_value_heads", &b.GlobalKVHeads)
	}
	readOverrides(k, c, b)
	k.integerOrNull("vocab_size_per_layer_input", &b.InputsVocab)
	c.ByLayer = b.normal(c)
}

// refuseBidirectional refuses attention to later tokens.
func refuseBidirectional(k *keys) {
	bidirectional := ""
	if !k.null("use_bidirectional_attention") {
		k.text("use_bidirectional_attention", &bidirectional)
	}
	if bidirectional != "" && bidirectional != "vision" { // in text the latter is causal
		k.fail("use_bidirectional_attention %q is not supported: only null or vision", strictjson.Brief(bidirectional))
	}
}

// gemma4Windows reads which layers slide: those of layer_types or, without this key, all except every sixth. The last
// layer never does.
func gemma4Windows(k *keys, c *Config) {
	window := readSlidingWindow(k, 512)
	slides, given := readLayerTypes(k, c, slidingAttention)
	slide(k, c, window, func(i int) bool { return i != c.Layers-1 && (given && slides[i] || !given && (i+1)%6 != 0) })
}

// gemma4Rope reads rope_parameters of both types of layers. transformers reads no older key.
func gemma4Rope(k *keys, c *Config) {
	c.Rope.Theta, c.Rope.LocalTheta, c.Rope.Scaling = 1e6, 10000, &RopeProportional{Fraction: 0.25, Factor: 1}
	in := k.section("rope_parameters")
	if in == nil {
		return
	}
	full, sliding := in.section(fullAttention), in.section(slidingAttention)
	if full == nil || sliding == nil && c.Windows != nil {
		in.fail("%s and %s are needed", fullAttention, slidingAttention)
	}
	if full != nil {
		c.Rope.Theta, c.Rope.Scaling = readProportional(full, true)
		in.fold(full)
	}
	if sliding != nil {
		c.Rope.LocalTheta, _ = readProportional(sliding, false)
		in.fold(sliding)
	}
	k.fold(in)
}

// readProportional reads the parameters of one type of layers.
func readProportional(k *keys, allowed bool) (theta float64, scaling RopeScaling) {
	kind, r := "default", &RopeProportional{Fraction: 1, Factor: 1}
	k.require("rope_theta")
	k.float("rope_theta", &theta)
	k.text("rope_type", &kind)
	if kind == "default" {
		return theta, nil
	}
	if kind != "proportional" || !allowed {
		k.fail("rope_type %q is not supported: use default, or proportional for layers without a window", strictjson.Brief(kind))
	}
	k.floatOrNull("partial_rotary_factor", &r.Fraction)
	k.floatOrNull("factor", &r.Factor)
	if r.identity() {
		return theta, nil
	}
	return theta, r
}

// readOverrides reads per_layer_config. transformers 5.24 writes it in place of global_head_dim and num_global_key_value_heads.
func readOverrides(k *keys, c *Config, b *ByLayer) {
	in := k.section("per_layer_config")
	if in == nil {
		return
	}
	b.GlobalHeadDim, b.GlobalKVHeads = 0, 0
	for i := range boundedLayers(c.Layers) {
		one := in.section(strconv.Itoa(i))
		if one == nil {
			one = &keys{}
		}
		for key := range one.values {
			if key != "head_dim" && key != "num_key_value_heads" {
				one.fail("%s is not supported here", strictjson.Brief(key))
			}
		}
		dim, kv := c.HeadDim, c.KVHeads
		one.integer("head_dim", &dim)
		one.integer("num_key_value_heads", &kv)
		switch window, first := c.Layer(i).Window(), b.GlobalHeadDim == 0; {
		case window > 0 && (dim != c.HeadDim || kv != c.KVHeads):
			one.fail("layers with a window are supported without overrides only")
		case window == 0 && first:
			b.GlobalHeadDim, b.GlobalKVHeads = dim, kv
		case window == 0 && (dim != b.GlobalHeadDim || kv != b.GlobalKVHeads):
			one.fail("layers without a window are supported with equal overrides only")
		}
		in.fold(one)
	}
	k.fold(in)
}

func writeGemma4(c Config) map[string]any {
	full := c.Rope.section()
	full["rope_theta"] = decimal(c.Rope.Theta)
	object := typesAndWindow(c)
	object["rope_parameters"] = map[string]any{fullAttention: full,
		slidingAttention: map[string]any{"rope_type": "default", "rope_theta": decimal(c.Rope.LocalTheta)}}
	object["final_logit_softcapping"], object["enable_moe_block"] = nil, false
	if c.LogitCap > 0 {
		object["final_logit_softcapping"] = decimal(c.LogitCap)
	}
	b := c.ByLayer.orZero()
	object["global_head_dim"] = cmp.Or(b.GlobalHeadDim, c.HeadDim)
	object["num_global_key_value_heads"] = nil
	if b.GlobalKVHeads > 0 {
		object["num_global_key_value_heads"] = b.GlobalKVHeads
	}
	object["vocab_size_per_layer_input"] = cmp.Or(b.InputsVocab, c.VocabSize)
	return object
}

// RopeProportional rotates only the first planes of a head; Fraction is their share of all planes. Frequencies are computed over the
// whole head and divided by Factor.
type RopeProportional struct{ Fraction, Factor float64 }

func (r *RopeProportional) rescale(freqs []float64, rotary Rotary) {
	turning := int(r.Fraction * float64(rotary.Dim) / 2)
	for i := range freqs {
		freqs[i] /= r.Factor
		if i >= turning {
			freqs[i] = 0
		}
	}
}

func (r *RopeProportional) amplitude() float64 { return 1 }
func (r *RopeProportional) identity() bool     { return r.Fraction == 1 && r.Factor == 1 }

func (r *RopeProportional) validate() error {
	if !(r.Fraction >= 0 && r.Fraction <= 1) {
		return fmt.Errorf("rope_parameters.partial_rotary_factor is %g: must be 0 to 1", r.Fraction)
	}
	if !positiveFinite(r.Factor) {
		return fmt.Errorf("rope_parameters.factor is %g: must be positive and finite", r.Factor)
	}
	return nil
}

func (r *RopeProportional) json() map[string]any {
	return map[string]any{"rope_type": "proportional", "partial_rotary_factor": decimal(r.Fraction), "factor": decimal(r.Factor)}
}
