package arch

// Mistral is the family of Mistral 7B and Nemo with full attention: sliding_window is null, or at least as large as the
// context. GGUF files of these models have the architecture llama.
const Mistral = "mistral"

func init() {
	register(&family{
		name:         Mistral,
		architecture: "MistralForCausalLM",
		defaults: Config{VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, FFN: 14336, RMSEps: 1e-6,
			MaxPosition: 131072, BOS: []int32{1}, EOS: []int32{2}},
		refuse: func(k *keys, c Config) {
			window := 4096 // default of transformers
			if k.null("sliding_window") {
				return
			}
			k.integer("sliding_window", &window)
			if window < c.MaxPosition {
				k.fail("sliding_window %d is below max_position_embeddings %d and not supported: only full attention is; lower max_position_embeddings, or set sliding_window to null if the model was trained without it",
					window, c.MaxPosition)
			}
		},
		writes: map[string]any{"sliding_window": nil},
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(false)
			l.output(false)
			l.postNorm()
			l.gatedMLP(false)
		},
	})
}
