package arch

// Gemma3 is the family of the text models of Gemma 3: norms before and after attention and MLP, GELU, scaled embeddings,
// and windows on most layers. Layers with a window have their own rotary embedding.
const Gemma3 = "gemma3_text"

func init() {
	register(&family{
		name:         Gemma3,
		architecture: "Gemma3ForCausalLM",
		defaults:     gemmaDefaults(262208, 26),
		has:          familyKeys{attentionBias: true, windows: true, queryScalar: true},
		Features:     Features{NormOffset: 1, GELU: true},
		read: func(k *keys, c *Config) {
			gemma3Scalars(k, c)
			gemma3Windows(k, c)
		},
		write: writeGemma3,
		layer: func(l *layer, c Config) {
			l.gemma(c)
			l.mlpNorm()
		},
		gguf: &gguf{name: "gemma3", read: gemma3GGUF, write: writeGemma3GGUF},
	})
}

// gemmaDefaults returns the defaults of Gemma 3 and 4.
func gemmaDefaults(vocab, layers int) Config {
	return Config{VocabSize: vocab, Hidden: 2304, Layers: layers, Heads: 8, KVHeads: 4, HeadDim: 256, FFN: 9216, RMSEps: 1e-6,
		Rope: Rope{Theta: 1e6, LocalTheta: 10000}, MaxPosition: 131072, Tied: true, Tokens: SpecialTokens{BOS: []int32{2}, EOS: []int32{1}, Pad: []int32{0}}}
}

// gemma adds attention and the dense MLP of Gemma 3 and 4, without the norm after the MLP.
func (l *layer) gemma(c Config) {
	l.inputNorm()
	l.qkv(c.AttentionBias)
	l.headNorms()
	l.output(c.AttentionBias)
	l.attendedNorm()
	l.normBeforeMLP("pre_feedforward_layernorm")
	l.gatedMLP(false)
}

func gemma3Scalars(k *keys, c *Config) {
	c.Queries.Scalar = 256
	k.float("query_pre_attn_scalar", &c.Queries.Scalar)
	if c.Queries.Scalar <= 0 {
		k.fail("query_pre_attn_scalar is %g: must be positive", c.Queries.Scalar)
	}
	if c.Queries.Scalar == float64(c.HeadDim) {
		c.Queries.Scalar = 0
	}
	if c.Rope.LocalTheta <= 0 {
		k.fail("rope_local_base_freq is %g: must be positive", c.Rope.LocalTheta)
	}
}

// gemma3Windows reads from layer_types which layers have a window. If the key is absent, all layers have one, except
// every sliding_window_pattern-th.
func gemma3Windows(k *keys, c *Config) {
	slideByType(k, c, readSlidingWindow(k, 4096), func(i int) bool {
		return (i+1)%k.interval("sliding_window_pattern", 6) != 0
	})
}

func writeGemma3(c Config) map[string]any {
	scalar := any(c.HeadDim)
	if c.Queries.Scalar > 0 {
		scalar = decimal(c.Queries.Scalar)
		if whole := int(c.Queries.Scalar); float64(whole) == c.Queries.Scalar {
			scalar = whole
		}
	}
	object := typesAndWindow(c)
	object["query_pre_attn_scalar"], object["rope_local_base_freq"] = scalar, decimal(c.Rope.LocalTheta)
	return object
}

// gemma3GGUF reads windows and the scale of queries as llama.cpp does. A file has no key for the scale. It follows from the
// number of layers, since only the 27B model divides by the square root of Hidden/Heads.
func gemma3GGUF(k *keys, c *Config) {
	softcap := 0.0
	windowsGGUF(k, 6, c)
	const layersOf27B = 62
	if scalar := c.Hidden / max(c.Heads, 1); c.Layers == layersOf27B && scalar != c.HeadDim {
		c.Queries.Scalar = float64(scalar)
	}
	k.float("final_logit_softcapping", &softcap)
	if softcap != 0 {
		k.fail("final_logit_softcapping %g is not supported: only 0", softcap)
	}
}

func writeGemma3GGUF(c Config, set func(key string, value any)) {
	writeWindowGGUF(c, set)
	set("rope.freq_base_swa", c.Rope.LocalTheta)
}

// slidingPatternGGUF reads which layers have a window. The key is a list with one value per layer, which slidingPatternGGUF
// returns, or a number p, which it stores in pattern. The number means that all layers have a window, except every p-th
// (0: all have one).
func slidingPatternGGUF(k *keys, key string, pattern *int, layers int) (slides []bool) {
	switch list := k.values[key].(type) {
	case []bool:
		slides = list
	case []int64:
		for _, v := range list {
			slides = append(slides, v != 0)
		}
	default:
		k.integer(key, pattern)
		return nil
	}
	if len(slides) != layers {
		k.fail("%s lists %d layers, but the model has %d", key, len(slides), layers)
		return nil
	}
	return slides
}
