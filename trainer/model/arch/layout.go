package arch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Layout places every parameter of a model in one flat buffer. It is the only list of a model's tensors.
type Layout struct {
	Leaves []Leaf
	Numel  int64
}

// Vectors returns the number of values in leaves that are not matrices.
func (l *Layout) Vectors() (n int64) {
	for _, leaf := range l.Leaves {
		if leaf.Vector() {
			n += leaf.Numel()
		}
	}
	return n
}

// Layout returns the tensors of the architecture, which must be valid. The result depends on nothing else.
func (c Config) Layout() *Layout {
	if c.Module != nil {
		return c.Module.layout()
	}
	l := &Layout{}
	vocab, d := int64(c.VocabSize), int64(c.Hidden)
	l.add("embed", Matrix, Tensor{Name: "model.embed_tokens.weight", GGUF: ggufEmbedding, Shape: []int64{vocab, d}})
	c.ByLayer.addInputs(l, c)
	f := families[c.Family]
	for i := range c.Layers {
		f.layer(&layer{layout: l, c: c, own: c.Layer(i), index: i, pairs: f.interleaved(c)}, c)
	}
	norm, ggufNorm := cmp.Or(f.finalNorm, "norm"), "output_norm"
	if f.gguf != nil {
		ggufNorm = cmp.Or(f.gguf.finalNorm, ggufNorm)
	}
	l.add("norm", Norm, Tensor{Name: "model." + norm + ".weight", GGUF: ggufNorm + ".weight", Shape: []int64{d}, GGUFOffset: float32(c.Features().NormOffset)})
	if !c.Tied {
		l.add("head", Matrix, Tensor{Name: "lm_head.weight", GGUF: ggufHead, Shape: []int64{vocab, d}})
	}
	if c.Wrapper != "" {
		l.wrap(c.Body())
	}
	return l
}

// BlockNorms returns how many norms over the width of the residual stream a layer has: before attention and MLP, and after
// them. heads reports whether query and key heads have norms.
func (c Config) BlockNorms() (before, after int, heads bool) {
	first := 0 // layer that attends
	for first+1 < c.Layers && !c.Layer(first).Attends() {
		first++
	}
	l := &Layout{}
	families[c.Family].layer(&layer{layout: l, c: c, own: c.Layer(first), index: first}, c)
	for _, leaf := range l.Leaves {
		switch strings.TrimPrefix(leaf.Name, fmt.Sprintf("layers.%d.", first)) {
		case "input_norm", "post_norm", "experts_norm":
			before++
		case "attended_norm", "mlp_norm", "own_norm", "dense_norm", "routed_norm":
			after++
		case "q_norm":
			heads = true
		}
	}
	return before, after, heads
}

// Tensors lists every tensor of the checkpoint, in the order of the flat buffer.
func (l *Layout) Tensors() []Tensor {
	var all []Tensor
	for _, leaf := range l.Leaves {
		all = append(all, leaf.Parts...)
	}
	return all
}

// add appends a leaf made of tensors stacked along their rows.
func (l *Layout) add(name string, kind Kind, parts ...Tensor) {
	leaf := Leaf{Name: name, Kind: kind, Offset: l.Numel, Shape: slices.Clone(parts[0].Shape)}
	leaf.Shape[0] = 0
	for _, t := range parts {
		t.Offset = l.Numel
		leaf.Parts = append(leaf.Parts, t)
		leaf.Shape[0] += t.Shape[0]
		l.Numel += t.Numel()
	}
	l.Leaves = append(l.Leaves, leaf)
}

// eachLayer returns is(i) for each layer i. The number of layers may be unchecked.
func eachLayer(layers int, is func(layer int) bool) []bool {
	all := make([]bool, boundedLayers(layers))
	for i := range all {
		all[i] = is(i)
	}
	return all
}
