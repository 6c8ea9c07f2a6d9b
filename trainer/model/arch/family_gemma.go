package arch

// Gemma is the family of Gemma 1: Llama with GELU, scaled embeddings, and weights of norms stored minus 1.
const Gemma = "gemma"

func init() {
	register(&family{
		name:         Gemma,
		architecture: "GemmaForCausalLM",
		defaults: Config{VocabSize: 256000, Hidden: 3072, Layers: 28, Heads: 16, KVHeads: 16, HeadDim: 256, FFN: 24576, RMSEps: 1e-6, Rope: Rope{Theta: 10000},
			MaxPosition: 8192, Tied: true, Tokens: SpecialTokens{BOS: []int32{2}, EOS: []int32{1}, Pad: []int32{0}}},
		has:      familyKeys{attentionBias: true},
		Features: Features{NormOffset: 1, GELU: true},
		anyGELU:  true,
		read:     func(k *keys, _ *Config) { refuseBidirectional(k) },
		write:    func(Config) map[string]any { return map[string]any{"hidden_act": "gelu_pytorch_tanh"} },
		layer:    llamaLayer,
		gguf:     &gguf{},
	})
}
