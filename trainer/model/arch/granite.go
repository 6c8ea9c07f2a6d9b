package arch

import "cmp"

// Granite is the family of the dense Granite 3 and 4: Llama with four constant factors.
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
		layer:         llamaLayer,
		gguf:          &gguf{interleaved: true, read: graniteGGUF, write: writeGraniteGGUF},
	})
}

// ggufMultipliers lists the keys of the factors in GGUF files, in the order of multiplierKeys.
var ggufMultipliers = []string{"embedding_scale", "residual_scale", "attention.scale", "logit_scale"}

// graniteGGUF reads the factors. llama.cpp requires all of them. A factor of 0 means that the factor changes nothing.
// For llama.cpp, a file whose scaling is not "finetuned" is a model without positions.
func graniteGGUF(m *metadata, prefix string, c *Config) {
	for i, k := range c.multiplierKeys() {
		key := prefix + ggufMultipliers[i]
		m.require(key)
		m.float(key, k.value)
		if float32(*k.value) == float32(k.neutral) {
			*k.value = 0
		}
	}
	turns := true
	if lookup(m, prefix+"rope.scaling.finetuned", &turns); !turns {
		m.fail("%srope.scaling.finetuned false is not supported: the model has no positions", prefix)
	}
}

func writeGraniteGGUF(c Config, set func(key string, value any)) {
	for i, k := range c.multiplierKeys() {
		set(ggufMultipliers[i], cmp.Or(*k.value, k.neutral))
	}
}
