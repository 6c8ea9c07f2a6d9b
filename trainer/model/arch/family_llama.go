package arch

// Llama is the family of Llama 2 and 3, SmolLM2 and other models with this model_type.
const Llama = "llama"

func init() {
	register(&family{
		name:         Llama,
		architecture: "LlamaForCausalLM",
		defaults: Config{VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, FFN: 11008, RMSEps: 1e-6, MaxPosition: 2048,
			Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}},
		has:   familyKeys{attentionBias: true, mlpBias: true},
		layer: llamaLayer,
		gguf:  &gguf{interleaved: true, ropeFactors: true},
	})
}

// llamaLayer adds the parts of a layer with norms before attention and MLP.
func llamaLayer(l *layer, c Config) {
	l.inputNorm()
	l.qkv(c.AttentionBias)
	l.output(c.AttentionBias)
	l.postNorm()
	l.gatedMLP(c.MLPBias)
}
