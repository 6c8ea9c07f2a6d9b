package model

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/weights"
)

// Leaf is one trained tensor: a contiguous window of the flat parameter buffer. Projections that are
// always applied to the same input (q, k, v; gate, up) are one leaf, so that they are one GEMM; the
// checkpoint tensors inside it are its Parts.
type Leaf struct {
	Name   string
	Shape  []int64 // rows first; one dimension for norms and biases
	Offset int64   // in elements, into the flat buffer
	Parts  []Part  // in the order of the rows
}

// Part is one tensor of a Hugging Face checkpoint and its window of the flat buffer.
type Part struct {
	Name   string
	Shape  []int64
	Offset int64
}

// Numel is the number of elements of the part.
func (p Part) Numel() int64 { return numel(p.Shape) }

// Layout places every parameter of a model in one flat buffer, which is what the optimizer, the
// gradient norm and the checkpoint digests run over.
type Layout struct {
	Leaves []Leaf
	Numel  int64
	index  map[string]int
}

// NewLayout is a pure function of the architecture.
func NewLayout(cfg weights.Config) *Layout {
	b := &Layout{index: map[string]int{}}
	d, hd := int64(cfg.Hidden), int64(cfg.HeadDim)
	q, kv, f := int64(cfg.Heads)*hd, int64(cfg.KVHeads)*hd, int64(cfg.FFN)
	b.add("embed", d, rows{"model.embed_tokens.weight", int64(cfg.VocabSize)})
	for i := range cfg.Layers {
		l, hf := fmt.Sprintf("layers.%d.", i), fmt.Sprintf("model.layers.%d.", i)
		att, mlp := hf+"self_attn.", hf+"mlp."
		b.add(l+"input_norm", 0, rows{hf + "input_layernorm.weight", d})
		b.add(l+"qkv", d, rows{att + "q_proj.weight", q}, rows{att + "k_proj.weight", kv}, rows{att + "v_proj.weight", kv})
		if cfg.AttentionBias {
			b.add(l+"qkv_bias", 0, rows{att + "q_proj.bias", q}, rows{att + "k_proj.bias", kv}, rows{att + "v_proj.bias", kv})
		}
		if cfg.QKNorm {
			b.add(l+"q_norm", 0, rows{att + "q_norm.weight", hd})
			b.add(l+"k_norm", 0, rows{att + "k_norm.weight", hd})
		}
		b.add(l+"o", q, rows{att + "o_proj.weight", d})
		if cfg.OutputBias() {
			b.add(l+"o_bias", 0, rows{att + "o_proj.bias", d})
		}
		b.add(l+"post_norm", 0, rows{hf + "post_attention_layernorm.weight", d})
		b.add(l+"gate_up", d, rows{mlp + "gate_proj.weight", f}, rows{mlp + "up_proj.weight", f})
		if cfg.MLPBias {
			b.add(l+"gate_up_bias", 0, rows{mlp + "gate_proj.bias", f}, rows{mlp + "up_proj.bias", f})
		}
		b.add(l+"down", f, rows{mlp + "down_proj.weight", d})
		if cfg.MLPBias {
			b.add(l+"down_bias", 0, rows{mlp + "down_proj.bias", d})
		}
	}
	b.add("norm", 0, rows{"model.norm.weight", d})
	if !cfg.Tied {
		b.add("head", d, rows{"lm_head.weight", int64(cfg.VocabSize)})
	}
	return b
}

// rows is a checkpoint tensor of n rows (or n elements where the leaf has one dimension).
type rows struct {
	name string
	n    int64
}

// add appends a leaf made of parts stacked along the rows; cols 0 makes it one-dimensional.
func (b *Layout) add(name string, cols int64, parts ...rows) {
	leaf := Leaf{Name: name, Offset: b.Numel}
	var total int64
	for _, p := range parts {
		shape := []int64{p.n}
		if cols > 0 {
			shape = []int64{p.n, cols}
		}
		leaf.Parts = append(leaf.Parts, Part{Name: p.name, Shape: shape, Offset: b.Numel})
		b.Numel += numel(shape)
		total += p.n
	}
	leaf.Shape = []int64{total}
	if cols > 0 {
		leaf.Shape = []int64{total, cols}
	}
	b.index[name] = len(b.Leaves)
	b.Leaves = append(b.Leaves, leaf)
}

// Parts lists every checkpoint tensor in flat order.
func (b *Layout) Parts() []Part {
	var all []Part
	for _, l := range b.Leaves {
		all = append(all, l.Parts...)
	}
	return all
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}
