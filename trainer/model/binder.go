package model

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// binder finds the tensors of a decoder by their names.
type binder struct {
	m              *Model
	matrices, rest []*torch.Tensor // one per Layout.Leaves
	adapters       []map[string]torch.LoRA
	at             map[string]int // indices of Layout.Leaves
	bound          []torch.Matrix // tensors that were found, also those of adapters; no quantised matrices
}

// find returns the leaf of a name, or nil if the architecture lacks it.
func (b *binder) find(name string, leaves []*torch.Tensor) *torch.Tensor {
	if i, ok := b.at[name]; ok {
		b.bound = append(b.bound, leaves[i])
		return leaves[i]
	}
	return nil
}

func (b *binder) matrix(name string) *torch.Tensor { return b.find(name, b.matrices) }

func (b *binder) other(name string) *torch.Tensor { return b.find(name, b.rest) }

// weight returns the quantised matrix of a name if there is one, else the leaf.
func (b *binder) weight(name string, leaves []*torch.Tensor) torch.Matrix {
	if i, ok := b.at[name]; ok && b.m.quantised != nil && b.m.quantised[i] != nil {
		return b.m.quantised[i]
	}
	return b.find(name, leaves)
}

// linear returns a linear map with its bias and its adapters.
func (b *binder) linear(name string) linear {
	l := linear{b.weight(name, b.matrices), b.other(name + "_bias"), adaptersOf(b.adapters, name)}
	for _, a := range l.lora {
		b.bound = append(b.bound, a.Values)
	}
	return l
}

// layer returns layer i without its experts.
func (b *binder) layer(i int) layer {
	m, p := b.m, fmt.Sprintf("layers.%d.", i)
	c := m.Config.Layer(i)
	rotary, _ := c.Rotary()
	l := layer{
		cfg: &m.Config, rotation: m.tables.rotations[rotary], index: i,
		table: headTensors{order: m.tables.heads.orders[columnsOf(&m.Config, i)], growth: m.tables.heads.growth}, factor: b.other(p + arch.FactorLeaf),
		preAttentionNorm: b.other(p + "input_norm"), preMLPNorm: b.other(p + "post_norm"),
		postAttentionNorm: b.other(p + "attended_norm"), postMLPNorm: b.other(p + "mlp_norm"),
		qkv: b.linear(p + "qkv"), o: b.linear(p + "o"),
		qNorm: b.other(p + "q_norm"), kNorm: b.other(p + "k_norm"), sinks: b.other(p + "sinks"),
		gateUp: b.linear(p + "gate_up"), down: b.linear(p + "down"),
	}
	if c.Convolves() {
		l.conv = &shortConv{in: b.linear(p + "conv_in"), out: b.linear(p + "conv_out"),
			ShortConv: torch.ShortConv{Weight: b.other(p + "conv"), Bias: b.other(p + "conv_bias")}}
	}
	if c.Recurs() {
		g := m.Config.GatedDelta
		l.delta = &gatedDelta{in: b.linear(p + "delta_in"), out: b.linear(p + "delta_out"), norm: b.other(p + "delta_norm"), sizes: g, eps: m.Config.RMSEps,
			conv: torch.ShortConv{Weight: b.other(p + "conv"), SiLU: true},
			aLog: b.other(p + "a_log"), dtBias: b.other(p + "dt_bias")}
	} else if m.Config.GatedAttention() {
		l.gates = m.tables.heads.gates
	}
	if l.qNorm != nil {
		l.table.vNorm = m.tables.heads.ones[valueNorm{c.HeadDim(), l.qNorm.DType()}]
	}
	if m.Config.LayerInputs() > 0 {
		l.own = &ownInput{gate: b.linear(p + "input_gate"), up: b.linear(p + "input_up"), norm: b.other(p + "own_norm")}
	}
	return l
}

// mixture returns the experts of the layer whose names begin with p. index counts the layers that have experts.
func (b *binder) mixture(p string, index int) *mixture {
	cfg := &b.m.Config
	x := &mixture{index: index, router: b.other(p + "router"), routerBias: b.other(p + "router_bias"),
		experts: torch.MLPs{GateUp: b.matrix(p + "experts_gate_up"), Down: b.matrix(p + "experts_down"),
			GateUpBias: b.other(p + "experts_gate_up_bias"), DownBias: b.other(p + "experts_down_bias"), Gates: gatesOf(cfg)},
		perToken: cfg.Mixture.PerToken, normalise: cfg.Mixture.Normalise,
		sigmoid: cfg.Mixture.Sigmoid, choiceBias: b.other(p + arch.ChoiceBiasLeaf),
		hasShared:    cfg.Mixture.Shared > 0,
		sharedGateUp: b.linear(p + "shared_gate_up"), sharedDown: b.linear(p + "shared_down"), sharedGate: b.linear(p + "shared_gate")}
	if cfg.ExpertsBesideMLP() {
		x.parallel = &parallelWeights{input: b.other(p + "experts_norm"), output: b.other(p + "routed_norm"), dense: b.other(p + "dense_norm"),
			router: b.other(p + "router_norm"), scales: b.other(p + "expert_scales")}
	}
	return x
}
