package arch

// ERNIE45 is the family of the dense ERNIE 4.5: Llama with rotary planes of neighbouring dimensions.
const ERNIE45 = "ernie4_5"

func init() {
	register(&family{
		name:         ERNIE45,
		architecture: "Ernie4_5ForCausalLM",
		defaults: Config{VocabSize: 103424, Hidden: 1024, Layers: 18, Heads: 16, KVHeads: 2, HeadDim: 128, FFN: 3072, RMSEps: 1e-5,
			Rope: Rope{Theta: 500000}, MaxPosition: 131072, Tied: true, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{0}}},
		has:      familyKeys{useBias: true},
		Features: Features{RotaryPairs: true},
		layer:    llamaLayer,
		gguf:     &gguf{}, // without biases
	})
}
