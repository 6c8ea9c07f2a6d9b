package arch

// Mixtral is the family of Mixtral: Mistral with experts in every layer.
const Mixtral = "mixtral"

func init() {
	names := expertNames{router: "block_sparse_moe.gate", otherRouter: "mlp.gate", experts: "block_sparse_moe.experts", gate: "w1", up: "w3", down: "w2"}
	register(&family{
		name:         Mixtral,
		architecture: "MixtralForCausalLM",
		defaults: Config{VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, FFN: 14336, RMSEps: 1e-5, Rope: Rope{Theta: 1e6},
			MaxPosition: 131072, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}},
			Mixture: &Mixture{Experts: 8, PerToken: 2, FFN: 14336, Normalise: true, Step: 1}},
		has:   familyKeys{windows: true, expertsAlone: true},
		read:  everyLayerSlides(0),
		write: func(c Config) map[string]any { return map[string]any{"sliding_window": c.Windows.orNull()} },
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(false)
			l.output(false)
			l.postNorm()
			l.experts(c.Mixture, names, false)
		},
	})
}
