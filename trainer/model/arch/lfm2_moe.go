package arch

// LFM2MoE is the family of the mixtures of experts of LFM2: layers as in LFM2, the first ones with a dense MLP, the others with experts whose
// weights are sigmoids.
const LFM2MoE = "lfm2_moe"

func init() {
	names := expertNames{router: "feed_forward.gate", experts: "feed_forward.experts", gate: "w1", up: "w3", down: "w2", fused: "feed_forward.experts"}
	register(&family{
		name:         LFM2MoE,
		architecture: "Lfm2MoeForCausalLM",
		defaults: Config{VocabSize: 65536, Hidden: 2048, Layers: 32, Heads: 32, KVHeads: 8, FFN: 7168, RMSEps: 1e-5, RopeTheta: 1e6,
			MaxPosition: 128000, Tied: true, BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{0},
			Mixture: &Mixture{Experts: 32, PerToken: 4, FFN: 1792, Normalise: true, Step: 1, Sigmoid: &SigmoidRouter{Bias: true, Scale: 1}}},
		shortConv: true,
		finalNorm: "embedding_norm",
		read:      (*keys).lfm2MoE,
		write:     writeConvolutions,
		layer: func(l *layer, c Config) {
			l.lfm2(c)
			if !c.HasExperts(l.index) {
				l.gatedMLPNamed(false, "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")
				return
			}
			l.experts(c.Mixture, names, false)
			l.choiceBias(c.Mixture, "feed_forward")
		},
	})
}

// lfm2MoE reads the keys that have other names in this family, and which layers convolve. Only layer_types lists these layers here.
func (k *keys) lfm2MoE(c *Config) {
	c.RMSEps = 1e-5
	k.float("norm_eps", &c.RMSEps)
	k.booleanOrNull("tie_embedding", &c.Tied)
	if k.values["layer_types"] == nil {
		k.fail("layer_types is missing")
	}
	k.convolutions(c)
}
