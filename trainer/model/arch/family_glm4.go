package arch

// GLM4 is the family of GLM 4 (0414): norms before and after attention and MLP. Half of each head is rotated, in planes of
// neighbouring dimensions.
const GLM4 = "glm4"

func init() {
	register(&family{
		name:         GLM4,
		architecture: "Glm4ForCausalLM",
		defaults: Config{VocabSize: 151552, Hidden: 4096, Layers: 40, Heads: 32, KVHeads: 2, HeadDim: 128, FFN: 13696, RMSEps: 1.5625e-7,
			MaxPosition: 131072, AttentionBias: true, Tokens: SpecialTokens{EOS: []int32{151329, 151336, 151338}, Pad: []int32{151329}}},
		has:           familyKeys{attentionBias: true},
		partialRotary: 0.5,
		Features:      Features{RotaryPairs: true},
		write: func(c Config) map[string]any {
			return map[string]any{"partial_rotary_factor": c.Rope.partialFactor(c.HeadDim)}
		},
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(c.AttentionBias)
			l.output(false)
			l.normAfterAttention("post_self_attn_layernorm")
			l.postNorm()
			l.fusedMLP()
			l.normAfterMLP("post_mlp_layernorm")
		},
		gguf: &gguf{},
	})
}
