package arch

// Granite is the family of the dense Granite 3 and 4: Llama's with four constant factors.
const Granite = "granite"

func init() {
	register(&family{
		name:         Granite,
		architecture: "GraniteForCausalLM",
		defaults: Config{VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, FFN: 11008, RMSEps: 1e-6, MaxPosition: 2048,
			BOS: []int32{1}, EOS: []int32{2}},
		attentionBias: true,
		mlpBias:       true,
		multipliers:   true,
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(c.AttentionBias)
			l.output(c.AttentionBias)
			l.postNorm()
			l.gatedMLP(c.MLPBias)
		},
	})
}
