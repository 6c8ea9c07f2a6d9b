package arch

// Qwen3 is the family of the dense Qwen 3: Llama with an RMSNorm over every query and key head, before RoPE.
const Qwen3 = "qwen3"

func init() {
	register(&family{
		name:         Qwen3,
		architecture: "Qwen3ForCausalLM",
		defaults: Config{VocabSize: 151936, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128, FFN: 22016,
			RMSEps: 1e-6, MaxPosition: 32768},
		has:   familyKeys{attentionBias: true, windows: true},
		read:  upperLayersSlide,
		write: writeUpperLayers,
		layer: qwen3Layer,
		gguf:  &gguf{},
	})
}

// qwen3Layer adds the parts of a layer of Llama with norms of heads, and with experts if it has them.
func qwen3Layer(l *layer, c Config) {
	l.inputNorm()
	l.qkv(c.AttentionBias)
	l.headNorms()
	l.output(c.AttentionBias)
	l.postNorm()
	l.expertsOrMLP(mlpExperts)
}
