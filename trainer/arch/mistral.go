package arch

// Mistral is the family of Mistral 7B and Nemo, as far as their attention is full: sliding_window null, or so large
// that no position lies outside. GGUF files of these models call themselves llama.
const Mistral = "mistral"

func init() {
	register(&family{
		name:         Mistral,
		architecture: "MistralForCausalLM",
		defaults: Config{VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, FFN: 14336, RMSEps: 1e-6,
			MaxPosition: 131072, BOS: []int32{1}, EOS: []int32{2}},
		refuse: func(k *keys, c Config) {
			window := 4096 // of transformers, where the key is absent
			if k.null("sliding_window") {
				return
			}
			k.integer("sliding_window", &window)
			if window < c.MaxPosition {
				k.fail("sliding_window %d is below max_position_embeddings %d and not supported: attention here is full; null switches it off",
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
