package arch

import "math"

// LFM2 is the family of LFM2 and LFM2.5: layers of attention with norms of heads, and between them layers with a gated short convolution.
const LFM2 = "lfm2"

func init() {
	register(&family{
		name:         LFM2,
		architecture: "Lfm2ForCausalLM",
		defaults: Config{VocabSize: 65536, Hidden: 2560, Layers: 32, Heads: 32, KVHeads: 8, FFN: 12288, RMSEps: 1e-5, Rope: Rope{Theta: 1e6},
			MaxPosition: 128000, Tied: true, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{0}}},
		has:       familyKeys{shortConv: true},
		finalNorm: "embedding_norm",
		read:      readLFM2,
		write:     writeLFM2,
		layer:     lfm2Layer,
		gguf:      &gguf{finalNorm: "token_embd_norm", read: shortConvGGUF, write: writeShortConvGGUF}, // without biases
	})
}

// lfm2Layer adds attention or a convolution, experts or an MLP, and the norms before them.
func lfm2Layer(l *layer, c Config) {
	l.norm("input_norm", "operator_norm", "attn_norm", c.Hidden)
	if l.own.Convolves() {
		l.shortConv()
	} else {
		l.qkv(false)
		l.headNormsNamed("self_attn.q_layernorm", "self_attn.k_layernorm")
		l.outputNamed("self_attn.out_proj", false)
	}
	l.normBeforeMLP("ffn_norm")
	if !l.own.HasExperts() {
		l.gatedMLPNamed(false, "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")
		return
	}
	l.experts(c.Mixture, lfm2Experts, false)
	l.choiceBias(c.Mixture, "feed_forward")
}

// readLFM2 reads the width of the MLPs, and the keys of both families.
func readLFM2(k *keys, c *Config) {
	k.integerOrNull("block_ff_dim", &c.FFN)
	adjustFFN(k, c)
	readConvolutions(k, c)
}

// adjustFFN computes the width of the MLPs. Unless block_auto_adjust_ff_dim is false, it is two thirds of the configured width, times a
// factor, rounded up.
func adjustFFN(k *keys, c *Config) {
	adjust, factor, multiple := true, 1.0, 256
	k.boolean("block_auto_adjust_ff_dim", &adjust)
	k.floatOrNull("block_ffn_dim_multiplier", &factor)
	k.integer("block_multiple_of", &multiple)
	if !adjust {
		return
	}
	if multiple < 1 || multiple > maxFFN {
		k.fail("block_multiple_of is %d: must be 1 to %d", multiple, maxFFN)
		return
	}
	width := factor * math.Trunc(2*float64(c.FFN)/3)
	if k.null("block_ffn_dim_multiplier") { // then it is not rounded up, either
		multiple = 1
	}
	if !(width >= 0 && width <= maxFFN) {
		k.fail("block_ffn_dim_multiplier %g times two thirds of %d: the result must be at most %d", factor, c.FFN, maxFFN)
		return
	}
	c.FFN = (int(width) + multiple - 1) / multiple * multiple
}

// writeLFM2 writes the width of the MLPs as it is, without adjustment.
func writeLFM2(c Config) map[string]any {
	object := writeConvolutions(c)
	object["block_ff_dim"], object["block_auto_adjust_ff_dim"] = c.FFN, false
	return object
}

// writeConvolutions writes the keys that both families of LFM2 have.
func writeConvolutions(c Config) map[string]any {
	attends := []int{}
	for i := range c.Layers {
		if !c.Layer(i).Convolves() {
			attends = append(attends, i)
		}
	}
	return map[string]any{"norm_eps": decimal(c.RMSEps), "tie_embedding": c.Tied,
		"layer_types": c.typesOfLayers(convolution, LayerConfig.Convolves), "full_attn_idxs": attends}
}
