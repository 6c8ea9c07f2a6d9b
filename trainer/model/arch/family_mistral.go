package arch

// Mistral is the family of Mistral 7B and Nemo, with a window on every layer or none. GGUF files of these models have the
// architecture llama.
const Mistral = "mistral"

func init() {
	register(&family{
		name:         Mistral,
		architecture: "MistralForCausalLM",
		defaults: Config{VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, FFN: 14336, RMSEps: 1e-6,
			MaxPosition: 131072, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}},
		has:   familyKeys{windows: true},
		read:  everyLayerSlides(4096),
		write: func(c Config) map[string]any { return map[string]any{"sliding_window": c.Windows.orNull()} },
		layer: llamaLayer,
	})
}
