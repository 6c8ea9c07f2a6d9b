package arch

import "cmp"

// Granite is the family of the dense Granite 3 and 4: Llama with four constant factors.
const Granite = "granite"

func init() {
	register(&family{
		name:         Granite,
		architecture: "GraniteForCausalLM",
		defaults: Config{VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, FFN: 11008, RMSEps: 1e-6, MaxPosition: 2048,
			Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}},
		has:   familyKeys{attentionBias: true, mlpBias: true, multipliers: true},
		layer: llamaLayer,
		gguf:  &gguf{interleaved: true, read: graniteGGUF, write: writeGraniteGGUF},
	})
}

// graniteGGUF reads the factors. llama.cpp requires all of them. A factor of 0 means that the factor changes nothing.
// For llama.cpp, a file whose scaling is not "finetuned" is a model without positions.
func graniteGGUF(k *keys, c *Config) {
	for _, f := range c.Multipliers.keys(c.HeadDim) {
		k.require(f.gguf)
		k.float(f.gguf, f.value)
		if float32(*f.value) == float32(f.neutral) {
			*f.value = 0
		}
	}
	turns := true
	if k.boolean("rope.scaling.finetuned", &turns); !turns {
		k.fail("rope.scaling.finetuned false is not supported: the model has no positions")
	}
}

func writeGraniteGGUF(c Config, set func(key string, value any)) {
	for _, f := range c.Multipliers.keys(c.HeadDim) {
		set(f.gguf, cmp.Or(*f.value, f.neutral))
	}
}
