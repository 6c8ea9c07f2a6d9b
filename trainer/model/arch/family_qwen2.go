package arch

// Qwen2 is the family of Qwen 2 and 2.5: Llama with biases on q, k and v.
const Qwen2 = "qwen2"

func init() {
	register(&family{
		name:         Qwen2,
		architecture: "Qwen2ForCausalLM",
		defaults: Config{VocabSize: 151936, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, FFN: 22016, RMSEps: 1e-6,
			MaxPosition: 32768},
		has:   familyKeys{windows: true},
		read:  upperLayersSlide,
		write: writeUpperLayers,
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(true)
			l.output(false)
			l.postNorm()
			l.gatedMLP(false)
		},
		gguf: &gguf{},
	})
}
