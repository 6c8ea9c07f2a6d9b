package arch

import "fmt"

// layer adds the tensors of a decoder layer to a layout. Its methods add the parts from which families build layers.
// trainer/model finds the parts by the names of the leaves and skips absent ones.
type layer struct {
	layout *Layout
	c      Config
	own    LayerConfig // the part of c for this layer
	index  int
	pairs  int64 // of q and k, see Tensor
}

// module is a module of the checkpoint: its names within a layer in both formats, and the number of its rows.
type module struct {
	name, gguf string
	other      string // see Tensor; with its name within a layer
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
	if m.other != "" {
		t.Other = fmt.Sprintf("model.layers.%d.%s.%s", l.index, m.other, kind)
	}
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
	t.GGUFOffset = float32(l.c.Features().NormOffset)
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
	q, kv := l.c.Heads*l.own.HeadDim(), l.own.KVWidth()
	if l.c.GatedAttention() {
		q *= 2
	}
	modules := []module{{name: "self_attn.q_proj", gguf: "attn_q", rows: q, bias: bias, pairs: l.pairs},
		{name: "self_attn.k_proj", gguf: "attn_k", rows: kv, bias: bias, pairs: l.pairs}, {name: "self_attn.v_proj", gguf: "attn_v", rows: kv, bias: bias}}
	switch {
	case l.own.KVLayer() != l.index:
		modules = modules[:1]
	case l.own.KeysAreValues():
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
	l.norm("q_norm", q, "attn_q_norm", l.own.HeadDim())
	if l.own.KVLayer() == l.index {
		l.norm("k_norm", k, "attn_k_norm", l.own.HeadDim())
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
	l.linear("o", Residual, l.c.Heads*l.own.HeadDim(), module{name: name, gguf: "attn_output", rows: l.c.Hidden, bias: bias})
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
	width := l.own.FFN()
	l.linear("gate_up", Matrix, l.c.Hidden,
		module{name: gate, gguf: "ffn_gate", rows: width, bias: bias}, module{name: up, gguf: "ffn_up", rows: width, bias: bias})
	l.linear("down", Residual, width, module{name: down, gguf: "ffn_down", rows: l.c.Hidden, bias: bias})
}
