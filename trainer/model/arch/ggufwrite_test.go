package arch

import (
	"reflect"
	"strings"
	"testing"
)

// ggufShape returns a small model of a family.
func ggufShape(family string) Config {
	c := Config{Family: family, VocabSize: 100, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 96, MaxPosition: 128, Tied: true}
	if family == LFM2MoE {
		c.Mixture = &Mixture{Experts: 4, PerToken: 2, FFN: 32, Normalise: true, Dense: []int{0}, Step: 1, Sigmoid: &SigmoidRouter{Bias: true, Scale: 1}}
		c.ShortConv = &ShortConv{Layers: []bool{true, false}, Width: 4}
	}
	return c.WithDefaults()
}

// TestGGUFOfFamilies writes the metadata of each family that GGUF has, and checks some values. GGUF itself reads its output again.
func TestGGUFOfFamilies(t *testing.T) {
	for _, name := range Families() {
		if families[name].gguf == nil || families[name].gguf.readOnly {
			if _, _, err := ggufShape(name).GGUF(); err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		c := ggufShape(name)
		if name == OLMo3 { // OLMo 3 without windows is OLMo 2
			c.Layers, c.Windows = 4, []int{8, 8, 8, 0}
			c.Rope.LocalTheta = c.Rope.Theta
		}
		var heads any = int64(2) // number of key heads
		if families[name].has.shortConv {
			c.ShortConv = &ShortConv{Layers: []bool{true, false}, Width: 4}
			heads = []int64{0, 2}
		}
		if HasExperts(name) && c.Mixture == nil {
			c.Mixture = &Mixture{Experts: 4, PerToken: 2, FFN: 32, Normalise: true, Step: 1}
		}
		switch name {
		case Qwen35MoE:
			c.Mixture.Shared = 48
		case Qwen2MoE:
			c.Mixture.Normalise, c.Mixture.Shared = false, 48
		case GPTOSS:
			c.Mixture.FFN, c.Windows = c.FFN, []int{8, 0}
		}
		meta, factors, err := c.GGUF()
		if err != nil || factors != nil || meta["general.architecture"] != families[name].ggufName() || !reflect.DeepEqual(meta[families[name].ggufName()+".attention.head_count_kv"], heads) {
			t.Errorf("%s: %v, %v, %v", name, meta, factors, err)
		}
	}
	if reflect.DeepEqual(ggufShape(Llama).forward(), ggufShape(Qwen3).forward()) {
		t.Error("two different models are equal")
	}
}

// TestGGUFMetadata writes the metadata of settings that GGUF has keys for, and of settings that it has no keys for.
func TestGGUFMetadata(t *testing.T) {
	for _, c := range []struct {
		name, family string
		change       func(c *Config)
		want         string
	}{
		{"linear scaling", Llama, func(c *Config) { c.Rope.Scaling = &RopeLinear{Factor: 4} }, ""},
		{"untied", Llama, func(c *Config) { c.Tied = false }, ""},
		{"biases", Llama, func(c *Config) { c.AttentionBias = true }, ""},
		{"scaling of Llama 3", Llama, func(c *Config) {
			c.Rope.Scaling = &RopeLlama3{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPosition: 8192}
			c.Rope.Theta = 5e5
		}, ""},
		{"a shorter original length", Llama, func(c *Config) {
			c.Rope.Scaling = &RopeLlama3{Factor: 16, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPosition: 96}
		}, ""},
		{"normalised weights of experts", Qwen2MoE, func(c *Config) {
			c.Mixture = &Mixture{Experts: 4, PerToken: 2, FFN: 32, Shared: 48, Normalise: true, Step: 1}
		}, "cannot represent Mixture"},
		{"a dense layer", Qwen2MoE, func(c *Config) {
			c.Mixture = &Mixture{Experts: 4, PerToken: 2, FFN: 32, Shared: 48, Dense: []int{0}, Step: 1}
		}, "cannot represent Mixture"},
		{"no window", GPTOSS, func(c *Config) {
			c.Mixture = &Mixture{Experts: 4, PerToken: 2, FFN: 96, Normalise: true, Step: 1}
		}, "sliding_window is missing"},
		{"windows of EXAONE", EXAONE4, func(c *Config) { c.Windows, c.Rope.Without = []int{8, 0}, []bool{false, true} }, "only for models of 64 layers"},
		{"windows of EXAONE 32B", EXAONE4, func(c *Config) {
			c.Layers = 64
			for i := range 64 {
				c.Windows, c.Rope.Without = append(c.Windows, 8), append(c.Rope.Without, i%4 == 3)
				if i%4 == 3 {
					c.Windows[i] = 0
				}
			}
		}, ""},
		{"another scaling of this kind", Llama, func(c *Config) {
			c.Rope.Scaling = &RopeLlama3{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 8, OriginalMaxPosition: 64}
		}, "GGUF"},
		{"windows", Gemma3, func(c *Config) { c.Layers, c.Windows = 6, []int{32, 32, 32, 32, 32, 0} }, ""},
		{"other windows", Gemma3, func(c *Config) { c.Layers, c.Windows = 6, []int{32, 0, 32, 0, 32, 0} }, "cannot represent Windows"},
		{"scaled queries", Gemma3, func(c *Config) { c.Queries.Scalar = 64 }, "cannot represent Queries.Scalar"},
		{"multipliers", Granite, func(c *Config) {
			c.Multipliers = Multipliers{Embedding: 12, Residual: 0.22, Attention: 1. / 64, Logits: 8}
		}, ""},
		{"biases of ERNIE", ERNIE45, func(c *Config) { c.AttentionBias, c.MLPBias = true, true }, "cannot represent AttentionBias"},
		{"windows of Qwen", Qwen3, func(c *Config) { c.Windows = []int{0, 32} }, "cannot represent Windows"},
		{"attention in all layers", LFM2, func(c *Config) { c.ShortConv = nil }, ""},
		{"convolutions in all layers", LFM2, func(c *Config) {
			c.ShortConv, c.KVHeads = &ShortConv{Layers: []bool{true, true}, Width: 3}, c.Heads
		}, ""},
		{"biases of convolutions", LFM2, func(c *Config) { c.ShortConv.Bias = true }, "cannot represent"},
		{"wider heads in a model with convolutions", LFM2, func(c *Config) { c.HeadDim = 32 }, "key_length is 32"},
		{"convolutions of width 1", LFM2, func(c *Config) { c.ShortConv.Width = 1 }, "l_cache is 1"},
		{"experts in all layers", LFM2MoE, func(c *Config) { c.Mixture.Dense = nil }, ""},
		{"no bias for the choice of experts", LFM2MoE, func(c *Config) { c.Mixture.Sigmoid.Bias = false }, "take {4 2 32 true 0 [0] 1 {bias true, scale 1}} for {4 2 32 true 0 [0] 1 {bias false, scale 1}}"},
		{"scaled weights of experts", LFM2MoE, func(c *Config) { c.Mixture.Sigmoid.Scale = 1.5 }, "cannot represent Mixture"},
		{"weights of experts without normalisation", LFM2MoE, func(c *Config) { c.Mixture.Normalise = false }, "cannot represent Mixture"},
		{"biases of convolutions in a model with experts", LFM2MoE, func(c *Config) { c.ShortConv.Bias = true }, "cannot represent ShortConv"},
		{"value heads of another size", Qwen35, func(c *Config) { c.GatedDelta.ValueDim = 8 }, "ssm.inner_size is 32"},
		{"another eps in a model with delta rules", Qwen35, func(c *Config) { c.RMSEps = 1e-5 }, "layer_norm_rms_epsilon is 1e-05"},
		{"delta rules with convolutions of width 1", Qwen35, func(c *Config) { c.GatedDelta.Width = 1 }, "conv_kernel is 1"},
		{"biases in a model with delta rules", Qwen35, func(c *Config) { c.AttentionBias, c.GatedDelta.Layers = true, []bool{false, true} }, "cannot represent AttentionBias"},
		{"three value heads for a key head", Qwen35, func(c *Config) { c.GatedDelta.ValueHeads = 3 * c.GatedDelta.KeyHeads }, ""},
		{"heads that are rotated as a whole", Qwen35, func(c *Config) { c.Rope.Dim = 0 }, ""},
		{"yarn", Qwen3, func(c *Config) {
			c.Rope.Scaling = &RopeYaRN{Factor: 4, BetaFast: 16, BetaSlow: 1, AttentionFactor: yarnScale(4, 1), Truncate: true, OriginalMaxPosition: 32}
		}, "cannot represent Rope.Scaling"},
	} {
		m := ggufShape(c.family)
		c.change(&m)
		_, factors, err := m.GGUF()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, scaled := m.Rope.Scaling.(*RopeLlama3); err == nil && scaled != (factors != nil) {
			t.Errorf("%s: factors %v", c.name, factors)
		}
	}
}
