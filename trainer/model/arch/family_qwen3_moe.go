package arch

// Qwen3MoE is the family of the mixtures of experts of Qwen 3: attention as in Qwen3, and experts in all or some layers.
const Qwen3MoE = "qwen3_moe"

func init() {
	register(&family{
		name:         Qwen3MoE,
		architecture: "Qwen3MoeForCausalLM",
		defaults: Config{VocabSize: 151936, Hidden: 2048, Layers: 24, Heads: 32, KVHeads: 4, FFN: 6144, RMSEps: 1e-6,
			MaxPosition: 32768, Mixture: &Mixture{Experts: 128, PerToken: 8, FFN: 768, Step: 1}},
		has:  familyKeys{attentionBias: true, windows: true},
		read: everyLayerMaySlide,
		write: func(c Config) map[string]any {
			return map[string]any{"use_sliding_window": c.Windows != nil, "sliding_window": c.Windows.orNull()}
		},
		layer: qwen3Layer,
		gguf:  &gguf{name: "qwen3moe"},
	})
}
