package arch

// Qwen35MoE is the family of the mixtures of experts of Qwen 3.5, 3.6 and 3.8. Layers are as in
// Qwen35, and all of them have experts with normalised weights and one more expert for all tokens.
const Qwen35MoE = "qwen3_5_moe_text"

// qwen35Experts are names as in mlpExperts; folders store all experts of a layer as one tensor.
var qwen35Experts = expertNames{router: "mlp.gate", experts: "mlp.experts", gate: "gate_proj", up: "up_proj", down: "down_proj", always: true}

func init() {
	register(&family{
		name:         Qwen35MoE,
		architecture: "Qwen3_5MoeForCausalLM",
		defaults: Config{VocabSize: 248320, Hidden: 2048, Layers: 40, Heads: 16, KVHeads: 2, HeadDim: 256, FFN: 512, RMSEps: 1e-6, MaxPosition: 32768,
			Mixture: &Mixture{Experts: 256, PerToken: 8, FFN: 512, Shared: 512, Normalise: true, Step: 1}},
		attentionBias: true,
		Features:      Features{NormOffset: 1},
		partialRotary: 0.25,
		gatedDelta:    true,
		read:          readQwen35,
		write:         writeQwen35,
		layer:         qwen35Layer,
		gguf:          &gguf{name: "qwen35moe", read: qwen35MoEGGUF, write: writeGatedDeltaGGUF},
	})
}

// qwen35MoEGGUF also reads the width of the expert for all tokens.
func qwen35MoEGGUF(k *keys, c *Config) {
	k.require("expert_shared_feed_forward_length")
	k.integer("expert_shared_feed_forward_length", &c.Mixture.Shared)
	gatedDeltaGGUF(k, c)
}
