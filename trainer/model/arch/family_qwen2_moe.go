package arch

// Qwen2MoE is the family of the mixtures of experts of Qwen 1.5 and 2: attention as in Qwen2, and layers with experts and
// with one more expert for all tokens.
const Qwen2MoE = "qwen2_moe"

func init() {
	register(&family{
		name:         Qwen2MoE,
		architecture: "Qwen2MoeForCausalLM",
		defaults: Config{VocabSize: 151936, Hidden: 2048, Layers: 24, Heads: 16, KVHeads: 16, FFN: 5632, RMSEps: 1e-6, MaxPosition: 32768, AttentionBias: true,
			Mixture: &Mixture{Experts: 60, PerToken: 4, FFN: 1408, Shared: 5632, Step: 1}},
		has:   familyKeys{qkvBias: true, windows: true},
		read:  everyOtherLayerSlides,
		write: writeUpperLayers,
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(c.AttentionBias)
			l.output(false)
			l.postNorm()
			l.expertsOrMLP(mlpExperts)
		},
		// llama.cpp normalises no weights of this architecture.
		gguf: &gguf{name: "qwen2moe", read: func(_ *keys, c *Config) { c.Mixture.Normalise = false }},
	})
}

// everyOtherLayerSlides reads the windows of Qwen2MoE. With use_sliding_window, layer_types lists the layers that have a
// window. If that key is absent, every other layer below max_window_layers has one, beginning with the first.
func everyOtherLayerSlides(k *keys, c *Config) {
	last, window := 28, usedWindow(k)
	k.integerOrNull("max_window_layers", &last)
	slideByType(k, c, window, func(i int) bool { return window > 0 && i%2 == 0 && i < last })
}
