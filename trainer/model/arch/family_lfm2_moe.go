package arch

// LFM2MoE is the family of the mixtures of experts of LFM2: layers as in LFM2, the first ones
// with a dense MLP, the others with experts whose weights are sigmoids.
const LFM2MoE = "lfm2_moe"

var lfm2Experts = expertNames{router: "feed_forward.gate", experts: "feed_forward.experts", gate: "w1", up: "w3", down: "w2", fused: "feed_forward.experts"}

func init() {
	register(&family{
		name:         LFM2MoE,
		architecture: "Lfm2MoeForCausalLM",
		defaults: Config{VocabSize: 65536, Hidden: 2048, Layers: 32, Heads: 32, KVHeads: 8, FFN: 7168, RMSEps: 1e-5, Rope: Rope{Theta: 1e6},
			MaxPosition: 128000, Tied: true, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{0}},
			Mixture: &Mixture{Experts: 32, PerToken: 4, FFN: 1792, Normalise: true, Step: 1, Sigmoid: &SigmoidRouter{Bias: true, Scale: 1}}},
		has:       familyKeys{shortConv: true},
		finalNorm: "embedding_norm",
		read:      readLFM2MoE,
		write:     writeConvolutions,
		layer:     lfm2Layer,
		// Without biases of convolutions.
		gguf: &gguf{name: "lfm2moe", finalNorm: "token_embd_norm", read: lfm2MoEGGUF, write: writeLFM2MoEGGUF},
	})
}

// readLFM2MoE reads the keys of both families. Here only layer_types lists the layers that convolve.
func readLFM2MoE(k *keys, c *Config) {
	if k.values["layer_types"] == nil {
		k.fail("layer_types is missing")
	}
	readConvolutions(k, c)
}

// ggufSigmoid is expert_gating_func of routers whose weights are sigmoids.
const ggufSigmoid = 2

// lfm2MoEGGUF reads which layers convolve, and which of them have experts. llama.cpp always
// adds a bias for the choice, divides the weights by their sum, and does not scale them. It saves 0 for a scale that is not set.
func lfm2MoEGGUF(k *keys, c *Config) {
	shortConvGGUF(k, c)
	k.require("expert_gating_func")
	gating, dense, scale := 0, 0, 1.0
	if k.integer("expert_gating_func", &gating); gating != ggufSigmoid {
		k.fail("expert_gating_func is %d: model_type %s has sigmoids (%d)", gating, c.Family, ggufSigmoid)
	}
	if k.float("expert_weights_scale", &scale); scale != 0 && scale != 1 {
		k.fail("expert_weights_scale is %g: must be 1, because llama.cpp does not read it", scale)
	}
	if k.integer("leading_dense_block_count", &dense); dense >= max(c.Layers, 1) {
		k.fail("leading_dense_block_count is %d: must be below block_count %d", dense, c.Layers)
		return
	}
	for i := range min(dense, maxLayers) {
		c.Mixture.Dense = append(c.Mixture.Dense, i)
	}
	c.Mixture.Sigmoid = &SigmoidRouter{Bias: true, Scale: 1}
}

// writeLFM2MoEGGUF writes the keys that lfm2MoEGGUF reads.
func writeLFM2MoEGGUF(c Config, set func(key string, value any)) {
	writeShortConvGGUF(c, set)
	set("expert_gating_func", ggufSigmoid)
	set("leading_dense_block_count", len(c.Mixture.Dense))
}
