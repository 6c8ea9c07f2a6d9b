package arch

// OLMo2 is the family of OLMo 2: norms after attention and MLP instead of before them, and over all queries and all keys of a
// row.
const OLMo2 = "olmo2"

func init() {
	register(&family{
		name:         OLMo2,
		architecture: "Olmo2ForCausalLM",
		defaults: Config{VocabSize: 50304, Hidden: 4096, Layers: 32, Heads: 32, FFN: 11008, RMSEps: 1e-5, MaxPosition: 2048,
			Tokens: SpecialTokens{EOS: []int32{50279}, Pad: []int32{1}}},
		has:   familyKeys{attentionBias: true},
		layer: olmoLayer,
		gguf:  &gguf{fits: func(file *keys) bool { return !olmoSlides(file) }},
	})
}

// olmoLayer adds the parts of a layer of OLMo 2 and 3.
func olmoLayer(l *layer, c Config) {
	l.qkv(c.AttentionBias)
	l.wholeNorms()
	l.output(c.AttentionBias)
	l.attendedNorm()
	l.gatedMLP(false)
	l.mlpNorm()
}
