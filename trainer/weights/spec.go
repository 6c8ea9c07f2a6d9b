package weights

import (
	"fmt"
	"math"
)

// TensorSpec is the name and shape (rows first) that a model expects of one tensor.
type TensorSpec struct {
	Name  string
	Shape []int64
}

// Numel returns the number of elements; the shape must hold non-negative sizes whose product fits int64.
func (s TensorSpec) Numel() int64 {
	n := int64(1)
	for _, d := range s.Shape {
		n *= d
	}
	return n
}

// ExpectedTensors lists every tensor of cfg's family under its Hugging Face name, in the order in which
// the model applies them. A tied model has no lm_head.weight. cfg must be valid.
func ExpectedTensors(cfg Config) []TensorSpec {
	h, q, kv := int64(cfg.Hidden), int64(cfg.Heads)*int64(cfg.HeadDim), int64(cfg.KVHeads)*int64(cfg.HeadDim)
	ffn, vocab := int64(cfg.FFN), int64(cfg.VocabSize)
	specs := []TensorSpec{{"model.embed_tokens.weight", []int64{vocab, h}}}
	add := func(name string, shape ...int64) { specs = append(specs, TensorSpec{name, shape}) }
	linear := func(name string, out, in int64, bias bool) {
		add(name+".weight", out, in)
		if bias {
			add(name+".bias", out)
		}
	}
	for i := range cfg.Layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		add(layer+"input_layernorm.weight", h)
		linear(layer+"self_attn.q_proj", q, h, cfg.AttentionBias)
		linear(layer+"self_attn.k_proj", kv, h, cfg.AttentionBias)
		linear(layer+"self_attn.v_proj", kv, h, cfg.AttentionBias)
		if cfg.QKNorm {
			add(layer+"self_attn.q_norm.weight", int64(cfg.HeadDim))
			add(layer+"self_attn.k_norm.weight", int64(cfg.HeadDim))
		}
		linear(layer+"self_attn.o_proj", h, q, cfg.OutputBias())
		add(layer+"post_attention_layernorm.weight", h)
		linear(layer+"mlp.gate_proj", ffn, h, cfg.MLPBias)
		linear(layer+"mlp.up_proj", ffn, h, cfg.MLPBias)
		linear(layer+"mlp.down_proj", h, ffn, cfg.MLPBias)
	}
	add("model.norm.weight", h)
	if !cfg.Tied {
		add("lm_head.weight", vocab, h)
	}
	return specs
}

// numel multiplies the sizes of a shape read from a file; ok is false for a negative size or a product
// above the largest int64.
func numel(shape []int64) (n int64, ok bool) {
	n = 1
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
	}
	for _, d := range shape {
		if d == 0 {
			return 0, true
		}
		if n > math.MaxInt64/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}
