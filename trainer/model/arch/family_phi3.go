package arch

// Phi3 is the family of Phi 3 and 4: Llama with fused projections and a window on every layer or on none. Only a part of
// each head may be rotated. Models with longrope are computed up to the length of their pretraining, see [RopeLong].
const Phi3 = "phi3"

func init() {
	register(&family{
		name:         Phi3,
		architecture: "Phi3ForCausalLM",
		defaults: Config{VocabSize: 32064, Hidden: 3072, Layers: 32, Heads: 32, FFN: 8192, RMSEps: 1e-5, MaxPosition: 4096,
			Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{32000}, Pad: []int32{32000}}},
		has:           familyKeys{windows: true, longRope: true},
		partialRotary: 1,
		read:          everyLayerSlides(0),
		write: func(c Config) map[string]any {
			object := map[string]any{"sliding_window": c.Windows.orNull(), "partial_rotary_factor": c.Rope.partialFactor(c.HeadDim)}
			if long, ok := c.Rope.Scaling.(*RopeLong); ok {
				object["max_position_embeddings"], object[originalPositions] = long.MaxPosition, long.OriginalMaxPosition
			}
			return object
		},
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.fusedQKV()
			l.output(false)
			l.postNorm()
			l.fusedMLP()
		},
	})
}
