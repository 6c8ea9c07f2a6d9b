package arch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Kind is the purpose of a leaf, which determines its initialisation.
type Kind int

// Kinds of leaves.
const (
	Matrix   Kind = iota // of a linear map, or the embedding: [rows, columns]
	Residual             // a matrix whose product is added to the residual stream
	Norm                 // weight of an RMSNorm
	Bias
	Taps  // weights of a depthwise convolution: [channels, 1, width]
	Scale // weight of an RMSNorm that is stored as it is in all families
	Decay // biases of the decays of a gated delta rule
)

// Tensor is a tensor of a checkpoint: its names and shape in files, and its place in the flat buffer.
type Tensor struct {
	Name   string  // in Hugging Face folders
	GGUF   string  // in GGUF files
	Shape  []int64 // rows first; one dimension for norms and biases
	Offset int64   // in elements, into the flat buffer of all parameters

	// Pairs is HeadDim/2 if the two halves of each head's rows are interleaved in GGUF files, and 0 otherwise.
	Pairs int64

	// GGUFOffset is added to each value in GGUF files: 1 for norms of families whose folders store weights minus 1.
	GGUFOffset float32

	// Tiled is the order of the tensor's rows or columns in GGUF files.
	Tiled Tiling

	// GGUFDecay reports that GGUF files store −e^x in place of each value x.
	GGUFDecay bool

	// Stack is the number of tensors of this shape that GGUF files store as one tensor, and Index is the place of this one.
	// 0: the tensor is stored alone.
	Stack, Index int64

	Fused Fused // the tensor in folders that contains this one and others; the zero value: this one is stored alone
}

// Fused is a tensor [Stack, Rows, columns], or [Stack, Rows] for biases. Folders of transformers 5 may store the tensors of
// all experts in it. An expert's tensor is rows Row, Row+Step, Row+2·Step... of matrix Index.
type Fused struct {
	Name            string // "": none
	Rows, Row, Step int64
	Always          bool // always written in this form
	Transposed      bool // unquantised matrices are [Stack, columns, Rows]
}

// Numel returns the number of elements.
func (t Tensor) Numel() int64 { return numel(t.Shape) }

// GGUFShape returns the shape in GGUF files, rows first, without the dimension of a Stack. There the weights of a convolution are a matrix.
func (t Tensor) GGUFShape() []int64 {
	if len(t.Shape) == 3 {
		return []int64{t.Shape[0], t.Shape[2]}
	}
	return t.Shape
}

// Leaf is one tensor of the forward pass: a contiguous range of the flat buffer. Projections that are always applied to the
// same input (q, k, v; gate, up) form one leaf, so that they are one matrix product. Parts lists the checkpoint's tensors
// in it.
type Leaf struct {
	Name   string // such as layers.3.qkv
	Layer  int    // counted from 1; 0: outside layers
	Kind   Kind
	Shape  []int64 // rows first; one dimension for norms and biases
	Offset int64   // in elements, into the flat buffer
	Parts  []Tensor

	Experts int // number of experts whose matrices are stacked in this leaf; 0: not a leaf of experts
}

// Numel returns the number of elements.
func (l Leaf) Numel() int64 { return numel(l.Shape) }

// Layout places every parameter of a model in one flat buffer. It is the only list of a model's tensors.
type Layout struct {
	Leaves []Leaf
	Numel  int64
}

// Vector reports whether the leaf is not a matrix: its values are multiplied or added element by element.
func (l Leaf) Vector() bool { return len(l.Shape) == 1 || l.Kind == Taps }

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
	c.inputsOfLayers(l)
	f := families[c.Family]
	for i := range c.Layers {
		f.layer(&layer{layout: l, c: c, index: i, pairs: f.interleaved(c)}, c)
	}
	norm, ggufNorm := cmp.Or(f.finalNorm, "norm"), "output_norm"
	if f.gguf != nil {
		ggufNorm = cmp.Or(f.gguf.finalNorm, ggufNorm)
	}
	l.add("norm", Norm, Tensor{Name: "model." + norm + ".weight", GGUF: ggufNorm + ".weight", Shape: []int64{d}, GGUFOffset: float32(c.NormOffset())})
	if !c.Tied {
		l.add("head", Matrix, Tensor{Name: "lm_head.weight", GGUF: ggufHead, Shape: []int64{vocab, d}})
	}
	if c.Wrapper != "" {
		c.wrapNames(l)
	}
	return l
}

// BlockNorms returns how many norms over the width of the residual stream a layer has: before attention and MLP, and after
// them. heads reports whether query and key heads have norms.
func (c Config) BlockNorms() (before, after int, heads bool) {
	first := 0 // layer that attends
	for first+1 < c.Layers && !c.Attends(first) {
		first++
	}
	l := &Layout{}
	families[c.Family].layer(&layer{layout: l, c: c, index: first}, c)
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

// layer adds the tensors of a decoder layer to a layout. Its methods add the parts from which families build layers.
// trainer/model finds the parts by the names of the leaves and skips absent ones.
type layer struct {
	layout *Layout
	c      Config
	index  int
	pairs  int64 // of q and k, see Tensor
}

// module is a module of the checkpoint: its names within a layer in both formats, and the number of its rows.
type module struct {
	name, gguf string
	rows       int
	bias       bool // it has a bias in addition to its weight
	pairs      int64
	tiled      Tiling

	stack, index int   // see Tensor
	fused        Fused // with its name within a layer
}

// tensor returns the module's weight or bias. cols is 0 for a tensor with one dimension.
func (l *layer) tensor(m module, kind string, cols int) Tensor {
	shape := []int64{int64(m.rows)}
	if cols > 0 {
		shape = append(shape, int64(cols))
	}
	t := Tensor{Name: fmt.Sprintf("model.layers.%d.%s.%s", l.index, m.name, kind),
		GGUF: fmt.Sprintf("blk.%d.%s.%s", l.index, m.gguf, kind), Shape: shape, Pairs: m.pairs, Tiled: m.tiled,
		Stack: int64(m.stack), Index: int64(m.index), Fused: m.fused}
	if m.fused.Name != "" {
		t.Fused.Name = fmt.Sprintf("model.layers.%d.%s", l.index, m.fused.Name)
		if cols == 0 {
			t.Fused.Name += "_bias"
		}
	}
	return t
}

func (l *layer) add(leaf string, kind Kind, tensors ...Tensor) {
	l.layout.add(fmt.Sprintf("layers.%d.%s", l.index, leaf), kind, tensors...)
	l.layout.Leaves[len(l.layout.Leaves)-1].Layer = l.index + 1
}

// norm adds the weight of an RMSNorm over size values.
func (l *layer) norm(leaf, name, gguf string, size int) {
	t := l.tensor(module{name: name, gguf: gguf, rows: size}, "weight", 0)
	t.GGUFOffset = float32(l.c.NormOffset())
	l.add(leaf, Norm, t)
}

// linear adds a linear map from cols values, and its bias if the modules have biases. Its rows are the rows of all modules.
func (l *layer) linear(leaf string, kind Kind, cols int, modules ...module) {
	var weights, biases []Tensor
	for _, m := range modules {
		weights = append(weights, l.tensor(m, "weight", cols))
		if m.bias {
			biases = append(biases, l.tensor(m, "bias", 0))
		}
	}
	l.add(leaf, kind, weights...)
	if len(biases) > 0 {
		l.add(leaf+"_bias", Bias, biases...)
	}
}

// inputNorm adds the norm before attention.
func (l *layer) inputNorm() { l.norm("input_norm", "input_layernorm", "attn_norm", l.c.Hidden) }

// qkv adds the projections to queries, keys and values, as far as the layer has them.
func (l *layer) qkv(bias bool) {
	q, kv := l.c.Heads*l.c.HeadDimOf(l.index), l.c.KVWidth(l.index)
	if l.c.GatedAttention() {
		q *= 2
	}
	modules := []module{{name: "self_attn.q_proj", gguf: "attn_q", rows: q, bias: bias, pairs: l.pairs},
		{name: "self_attn.k_proj", gguf: "attn_k", rows: kv, bias: bias, pairs: l.pairs}, {name: "self_attn.v_proj", gguf: "attn_v", rows: kv, bias: bias}}
	switch {
	case l.c.KVLayer(l.index) != l.index:
		modules = modules[:1]
	case l.c.KeysAreValues(l.index):
		modules = modules[:2]
	}
	l.linear("qkv", Matrix, l.c.Hidden, modules...)
}

// fusedQKV adds the same projections as one tensor.
func (l *layer) fusedQKV() {
	l.linear("qkv", Matrix, l.c.Hidden,
		module{name: "self_attn.qkv_proj", gguf: "attn_qkv", rows: (l.c.Heads + 2*l.c.KVHeads) * l.c.HeadDim})
}

// headNorms adds norms over every query head and every key head.
func (l *layer) headNorms() { l.headNormsNamed("self_attn.q_norm", "self_attn.k_norm") }

func (l *layer) headNormsNamed(q, k string) {
	l.norm("q_norm", q, "attn_q_norm", l.c.HeadDimOf(l.index))
	if l.c.KVLayer(l.index) == l.index {
		l.norm("k_norm", k, "attn_k_norm", l.c.HeadDimOf(l.index))
	}
}

// wholeNorms adds norms over all query heads together and over all key heads, before rotation.
func (l *layer) wholeNorms() {
	l.norm("q_norm", "self_attn.q_norm", "attn_q_norm", l.c.Heads*l.c.HeadDim)
	l.norm("k_norm", "self_attn.k_norm", "attn_k_norm", l.c.KVHeads*l.c.HeadDim)
}

// attendedNorm adds the norm of attention's result, before it is added to the residual stream.
func (l *layer) attendedNorm() { l.normAfterAttention("post_attention_layernorm") }

func (l *layer) normAfterAttention(name string) {
	l.norm("attended_norm", name, "post_attention_norm", l.c.Hidden)
}

// mlpNorm adds the norm of the MLP's result, before it is added to the residual stream.
func (l *layer) mlpNorm() { l.normAfterMLP("post_feedforward_layernorm") }

func (l *layer) normAfterMLP(name string) { l.norm("mlp_norm", name, "post_ffw_norm", l.c.Hidden) }

// output adds the projection of attention's result into the residual stream.
func (l *layer) output(bias bool) { l.outputNamed("self_attn.o_proj", bias) }

func (l *layer) outputNamed(name string, bias bool) {
	l.linear("o", Residual, l.c.Heads*l.c.HeadDimOf(l.index), module{name: name, gguf: "attn_output", rows: l.c.Hidden, bias: bias})
}

// postNorm adds the norm between attention and MLP.
func (l *layer) postNorm() { l.normBeforeMLP("post_attention_layernorm") }

func (l *layer) normBeforeMLP(name string) { l.norm("post_norm", name, "ffn_norm", l.c.Hidden) }

// fusedMLP adds a gated MLP whose gate and up projections are one tensor.
func (l *layer) fusedMLP() {
	l.linear("gate_up", Matrix, l.c.Hidden, module{name: "mlp.gate_up_proj", gguf: "ffn_up", rows: 2 * l.c.FFN})
	l.linear("down", Residual, l.c.FFN, module{name: "mlp.down_proj", gguf: "ffn_down", rows: l.c.Hidden})
}

// gatedMLP adds a gated MLP.
func (l *layer) gatedMLP(bias bool) {
	l.gatedMLPNamed(bias, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
}

func (l *layer) gatedMLPNamed(bias bool, gate, up, down string) {
	width := l.c.FFNOf(l.index)
	l.linear("gate_up", Matrix, l.c.Hidden, module{name: gate, gguf: "ffn_gate", rows: width, bias: bias}, module{name: up, gguf: "ffn_up", rows: width, bias: bias})
	l.linear("down", Residual, width, module{name: down, gguf: "ffn_down", rows: l.c.Hidden, bias: bias})
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}
