package arch

import "fmt"

// GPTOSS is the family of gpt-oss. It has experts in every layer, biases on every linear map, windows on
// every other layer, and for each head a sink. A sink is a learned term of the denominator of its softmax.
const GPTOSS = "gpt_oss"

func init() {
	names := expertNames{router: "mlp.router", experts: "mlp.experts", gate: "gate_proj", up: "up_proj", down: "down_proj", interleaved: true}
	register(&family{
		name:         GPTOSS,
		architecture: "GptOssForCausalLM",
		defaults: Config{VocabSize: 201088, Hidden: 2880, Layers: 36, Heads: 64, KVHeads: 8, HeadDim: 64, FFN: 2880, RMSEps: 1e-5, Rope: Rope{Theta: 150000},
			MaxPosition: 131072, AttentionBias: true, Mixture: &Mixture{Experts: 128, PerToken: 4, FFN: 2880, Normalise: true, Step: 1}},
		has:      familyKeys{attentionBias: true, windows: true, expertsAlone: true},
		Features: Features{ClampedGates: true},
		rope: `{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
			"original_max_position_embeddings": 4096}`,
		read:  readGPTOSS,
		write: writeGPTOSS,
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(c.AttentionBias)
			l.sinks()
			l.output(c.AttentionBias)
			l.norm("post_norm", "post_attention_layernorm", "post_attention_norm", c.Hidden)
			l.experts(c.Mixture, names, true)
		},
		gguf: &gguf{name: "gpt-oss", read: gptOSSGGUF, write: writeWindowGGUF},
	})
}

// sinks adds one number for each head. Its exponential is a term of the denominator of the head's softmax.
func (l *layer) sinks() {
	t := l.tensor(module{name: "self_attn", rows: l.c.Heads}, "sinks", 0)
	t.GGUF = fmt.Sprintf("blk.%d.attn_sinks.weight", l.index)
	l.add("sinks", Bias, t)
}

// readGPTOSS reads from layer_types which layers have a window. If the key is absent, every other layer has one, beginning with
// the first. Only the published values of the gates' limit and slope are supported.
func readGPTOSS(k *keys, c *Config) {
	for key, only := range map[string]float64{"swiglu_limit": 7, "swiglu_alpha": 1.702} {
		value := only
		k.float(key, &value)
		if value != only {
			k.fail("%s %g is not supported: only %g", key, value, only)
		}
	}
	slideByType(k, c, readSlidingWindow(k, 128), func(i int) bool { return i%2 == 0 })
}

func writeGPTOSS(c Config) map[string]any {
	object := typesAndWindow(c)
	object["rope_scaling"] = c.Rope.section()
	return object
}

// gptOSSGGUF reads the window of every other layer, which llama.cpp requires.
func gptOSSGGUF(k *keys, c *Config) {
	k.require("attention.sliding_window")
	windowsGGUF(k, 2, c)
}
