package arch

import (
	"cmp"
	"fmt"
)

// expertNames holds the names, within a layer, of a router, of the experts, and of an expert's projections.
type expertNames struct {
	router, experts, gate, up, down string
	fused                           string // the module of fused experts; "": mlp.experts
	otherRouter                     string // the router's name beside fused experts; "": router
	together                        bool   // GGUF files store gates and ups of all experts as one tensor
	always                          bool   // see Fused
	interleaved                     bool   // always fused and transposed, with rows of gate and up in turn
}

var mlpExperts = expertNames{router: "mlp.gate", experts: "mlp.experts", gate: "gate_proj", up: "up_proj", down: "down_proj"}

// besideExperts are the names of Gemma 4.
var besideExperts = expertNames{router: "router.proj", experts: "experts", gate: "gate_proj", up: "up_proj", down: "down_proj",
	fused: "experts", together: true, always: true}

// experts adds a router and a gated MLP for each expert, all of them with biases or all without. The experts are stacked in
// two leaves: one for gate and up, with an expert's gate before its up, and one for down.
func (l *layer) experts(m *Mixture, names expertNames, bias bool) {
	l.linear("router", Matrix, l.c.Hidden, module{name: names.router, other: names.otherRouter, gguf: "ffn_gate_inp", rows: m.Experts, bias: bias})
	ffn, hidden := int64(m.FFN), int64(l.c.Hidden)
	within := func(name string, rows, row, step int64) Fused {
		return Fused{cmp.Or(names.fused, "mlp.experts") + "." + name, rows, row, step, names.always || names.interleaved, names.interleaved}
	}
	gate, up := within("gate_up_proj", 2*ffn, 0, 1), within("gate_up_proj", 2*ffn, ffn, 1)
	if names.interleaved {
		gate, up = within("gate_up_proj", 2*ffn, 0, 2), within("gate_up_proj", 2*ffn, 1, 2)
	}
	gateName, upName := "gate", "up" // in GGUF files
	if names.together {
		gateName, upName = "gate_up", "gate_up"
	}
	var gateUp, down []module
	for e := range m.Experts {
		// A module of this expert; other files store the modules of all experts as one tensor.
		of := func(name, gguf string, rows int, fused Fused) module {
			return module{name: fmt.Sprintf("%s.%d.%s", names.experts, e, name), gguf: "ffn_" + gguf + "_exps", rows: rows, bias: bias,
				stack: m.Experts, index: e, fused: fused}
		}
		gateUp = append(gateUp, of(names.gate, gateName, m.FFN, gate), of(names.up, upName, m.FFN, up))
		down = append(down, of(names.down, "down", l.c.Hidden, within("down_proj", hidden, 0, 1)))
	}
	first := len(l.layout.Leaves)
	l.linear("experts_gate_up", Matrix, l.c.Hidden, gateUp...)
	l.linear("experts_down", Residual, m.FFN, down...)
	if !l.c.DividesExperts() {
		return
	}
	for i := range l.layout.Leaves[first:] {
		l.layout.Leaves[first+i].Experts = m.Experts
	}
}

// expertsBesideMLP adds a router, gated MLPs of experts, norms around them and after the dense MLP, and scales.
func (l *layer) expertsBesideMLP(m *Mixture) {
	l.norm("dense_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1", l.c.Hidden)
	l.norm("experts_norm", "pre_feedforward_layernorm_2", "pre_ffw_norm_2", l.c.Hidden)
	l.norm("routed_norm", "post_feedforward_layernorm_2", "post_ffw_norm_2", l.c.Hidden)
	l.add("router_norm", Norm, l.tensor(module{name: "router", gguf: "ffn_gate_inp", rows: l.c.Hidden}, "scale", 0))
	scales := l.tensor(module{name: "router", rows: m.Experts}, "per_expert_scale", 0)
	scales.GGUF = fmt.Sprintf("blk.%d.ffn_down_exps.scale", l.index)
	l.add("expert_scales", Norm, scales)
	l.experts(m, besideExperts, false)
}

// sharedExpert adds a SwiGLU MLP for all tokens, and its gate.
func (l *layer) sharedExpert(m *Mixture) {
	l.linear("shared_gate_up", Matrix, l.c.Hidden, module{name: "mlp.shared_expert.gate_proj", gguf: "ffn_gate_shexp", rows: m.Shared},
		module{name: "mlp.shared_expert.up_proj", gguf: "ffn_up_shexp", rows: m.Shared})
	l.linear("shared_down", Residual, m.Shared, module{name: "mlp.shared_expert.down_proj", gguf: "ffn_down_shexp", rows: l.c.Hidden})
	l.linear("shared_gate", Matrix, l.c.Hidden, module{name: "mlp.shared_expert_gate", gguf: "ffn_gate_inp_shexp", rows: 1})
}

// expertsOrMLP adds the experts of a layer that has them, and the dense MLP of any other layer.
func (l *layer) expertsOrMLP(names expertNames) {
	if !l.own.HasExperts() {
		l.gatedMLP(false)
		return
	}
	l.experts(l.c.Mixture, names, false)
	if l.c.Mixture.Shared > 0 {
		l.sharedExpert(l.c.Mixture)
	}
}
