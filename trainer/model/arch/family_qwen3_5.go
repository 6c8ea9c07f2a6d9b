package arch

// Qwen35 is the family of Qwen 3.5, 3.6 and 3.8: three layers with a gated delta rule for each
// layer of gated attention, in which a quarter of each head is rotated.
const Qwen35 = "qwen3_5_text"

// Qwen35MoE is the family of their mixtures of experts. All layers have experts with normalised weights and one more expert for all
// tokens.
const Qwen35MoE = "qwen3_5_moe_text"

// qwen35Experts are names as in mlpExperts; folders store all experts of a layer as one tensor.
var qwen35Experts = expertNames{router: "mlp.gate", experts: "mlp.experts", gate: "gate_proj", up: "up_proj", down: "down_proj", always: true}

func init() {
	dense := family{
		name:         Qwen35,
		architecture: "Qwen3_5ForCausalLM",
		defaults: Config{VocabSize: 248320, Hidden: 4096, Layers: 32, Heads: 16, KVHeads: 4, HeadDim: 256, FFN: 12288, RMSEps: 1e-6,
			MaxPosition: 32768},
		has:           familyKeys{attentionBias: true, gatedDelta: true},
		Features:      Features{NormOffset: 1},
		partialRotary: 0.25,
		read:          readQwen35,
		write:         writeQwen35,
		layer:         qwen35Layer,
		gguf:          &gguf{name: "qwen35", read: gatedDeltaGGUF, write: writeGatedDeltaGGUF}, // without biases
	}
	mixture := dense
	mixture.name, mixture.architecture = Qwen35MoE, "Qwen3_5MoeForCausalLM"
	mixture.defaults = Config{VocabSize: 248320, Hidden: 2048, Layers: 40, Heads: 16, KVHeads: 2, HeadDim: 256, FFN: 512, RMSEps: 1e-6,
		MaxPosition: 32768, Mixture: &Mixture{Experts: 256, PerToken: 8, FFN: 512, Shared: 512, Normalise: true, Step: 1}}
	mixture.gguf = &gguf{name: "qwen35moe", read: gatedDeltaGGUF, write: writeGatedDeltaGGUF}
	register(&dense)
	register(&mixture)
}

// qwen35Layer adds a gated delta rule or gated attention, and experts or an MLP.
func qwen35Layer(l *layer, c Config) {
	l.inputNorm()
	if l.own.Recurs() {
		l.gatedDelta()
	} else {
		l.qkv(c.AttentionBias)
		l.headNorms()
		l.output(c.AttentionBias)
	}
	l.norm("post_norm", "post_attention_layernorm", "post_attention_norm", c.Hidden)
	l.expertsOrMLP(qwen35Experts)
}

func readQwen35(k *keys, c *Config) {
	gate := true
	if k.boolean("attn_output_gate", &gate); !gate {
		k.fail("attn_output_gate is false: attention without a gate is not supported in model_type %s", c.Family)
	}
	readGatedDelta(k, c)
}

func writeQwen35(c Config) map[string]any {
	return map[string]any{"layer_types": c.typesOfLayers(linearAttention, LayerConfig.Recurs), "attn_output_gate": true,
		"partial_rotary_factor": c.Rope.partialFactor(c.HeadDim)}
}
