// Package model computes one readable forward pass over bindings/torch for all decoder families of trainer/model/arch. It
// does not depend on any family by name: it computes with the tensors that a layout lists. The same code trains (packed
// sequences, autograd) and generates (rows against a key-value cache); only the Attention differs.
package model

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Model holds the weights of one decoder on one device. Master is nil if the weights are frozen in bf16. Master, Half and
// Compute are nil if the weights stay quantised.
type Model struct {
	Config arch.Config
	Device *torch.Device
	Layout *arch.Layout
	form   *weights.Form   // form of the folder that the model was loaded from; nil if the folder holds only a language model
	inF32  map[string]bool // names of tensors that the folder holds in float32 among others of 16 bits

	Master  *Buffer       // [Layout.Numel], or a rank's share: the weights that the optimizer updates and checkpoints save
	share   ranks.Share   // the share in Master; with Options.Gathered, the share in all buffers
	Half    *torch.Tensor // bf16 copy of Master, or of all weights if Master is a share; the weights themselves if there is no Master; nil if unused
	Compute *torch.Tensor // the weights of training's forward pass: Master or Half

	Decoder             // for training, over views of Compute
	Generation *Decoder // for generation: the same decoder or, on a CPU with a bf16 copy, a decoder that reads matrices from that copy

	leaves    []*torch.Tensor    // views of Compute, one per Layout.Leaves
	quantised []*torch.Quantised // with Options.Quantised, one per Layout.Leaves: a matrix in blocks; nil if leaves holds a tensor instead

	halves []*torch.Tensor // views of Half, if Generation reads Half and Master
	wide   []*torch.Tensor // views of Master, if Generation reads both; without a Master, fp32 copies of norms and biases

	gathered gathered // with Options.Gathered: leaves are views of it
	loaded   uint32   // with Options.Gathered: checksum of the weights as they were loaded

	adapters map[string]torch.LoRA // keyed by the leaf to which they are added; nil: no adapters

	positions int // rows of the rotary tables
	rotations map[arch.Rotary]rotation
	heads     headTables
}

// Decoder computes the forward pass with weights of one precision.
type Decoder struct {
	cfg         *arch.Config
	embed, head torch.Matrix
	norm        *torch.Tensor
	inputs      *inputs // embeddings that layers add; nil: they add none
	layers      []layer
}

// layer holds the weights of one layer. Fields that the family lacks are nil.
type layer struct {
	cfg                   *arch.Config
	inputNorm, postNorm   *torch.Tensor // before attention and before the MLP
	attendedNorm, mlpNorm *torch.Tensor // after them
	qkv, o                linear
	qNorm, kNorm          *torch.Tensor
	sinks                 *torch.Tensor // [Heads]: terms of the denominators of attention's softmax
	conv                  *shortConv    // in place of attention
	delta                 *gatedDelta   // in place of attention
	gates                 *torch.Tensor // int32 [Heads*HeadDim]: columns of qkv that gate attention's result; nil: it is not gated
	gateUp, down          linear
	mixture               *mixture // in place of gateUp and down, or beside them
	rotation              rotation
	order, growth, vNorm  *torch.Tensor // of its headTables
	own                   *ownInput
	factor                *torch.Tensor // of the layer's result, [1]
	index                 int
}

// Attention separates the decoder from its two kinds of attention: packed training and cached generation. qkv is a layer's
// product of queries, keys and values; heads describes how its heads are normalised and rotated. sinks may be nil, see
// torch.AttentionPacked. The result is [T, Heads, HeadDim]. In layers that convolve, Convolve takes the place of Attend: bcx [T, 3·Hidden] is
// a layer's product of gates and inputs, at the positions pos, and the result is [T, Hidden]. In layers with a gated delta rule it is Recur:
// qkv is the product that conv convolves, and the result is [T, ValueHeads·ValueDim].
type Attention interface {
	Attend(layer int, qkv *torch.Tensor, heads torch.Heads, sinks *torch.Tensor) *torch.Tensor
	Convolve(layer int, bcx *torch.Tensor, conv torch.ShortConv, pos *torch.Tensor) *torch.Tensor
	Recur(layer int, qkv, ba *torch.Tensor, conv torch.ShortConv, rule torch.DeltaRule, pos *torch.Tensor) *torch.Tensor
}

// Pass describes the T rows of a forward pass, apart from their tokens.
type Pass struct {
	Pos       *torch.Tensor // int32 [T]
	Attention Attention
	Routes    *Routes       // may be nil
	Adapters  *torch.Tensor // int32 [T], for a decoder made by Together: the index of each row's model, -1 for none; nil: all use the first
	inputs    *torch.Tensor // embeddings that layers add, [T, Layers·Inputs]; nil: they add none
}

// Options sets the precision of a model and the size of its rotary tables.
type Options struct {
	Compute     torch.DType // torch.Float32 or torch.BFloat16
	HalfCopy    bool        // keep a bf16 copy next to float32: generation on a CPU then reads half as many bytes
	Frozen      bool        // only adapters are trained: in bf16 the model has no Master
	HostMaster  bool        // in bf16, Master is in host memory
	Quantised   bool        // keep matrices in the blocks of a GGUF file: only adapters can then be trained
	MaxPosition int         // rows of the rotary tables; 0 means the config's limit

	// Rank is the index of this process among the Size processes that train these weights together; Size 0 means one. In
	// bf16, Master is this rank's share. With Gathered this rank keeps nothing but its share: passes proceed layer by
	// layer, and nothing can be sampled.
	Rank, Size int
	Gathered   bool
}

// Random makes a model with random weights, which depend on cfg and seed alone. Weights are normal with standard deviation
// 1/sqrt(fan in). The two projections that write to the residual stream are divided by sqrt(2·layers) (GPT-2, Radford et
// al. 2019). Norms are 1, including their offset, and biases are 0.
func Random(ctx context.Context, dev *torch.Device, cfg arch.Config, seed uint64, opt Options) (*Model, error) {
	m, err := allocate(ctx, dev, cfg, opt)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0x6d6772706f)) // second word: "mgrpo"
	err = m.fill(ctx, func(l arch.Leaf, t arch.Tensor, _ int64, dst []float32) error {
		mean, std := initial(&cfg, l)
		for i := range dst {
			if dst[i] = mean; std > 0 {
				dst[i] = float32(rng.NormFloat64() * std)
			}
		}
		return nil
	})
	if err != nil {
		m.Close(ctx)
		return nil, err
	}
	return m, nil
}

// initial returns the mean and the standard deviation of a leaf's values. One of them is 0. The states of gated delta rules lose a twentieth with
// each token: softplus(-3).
func initial(cfg *arch.Config, l arch.Leaf) (mean float32, std float64) {
	switch l.Kind {
	case arch.Bias:
		return 0, 0
	case arch.Norm:
		return float32(1 - cfg.NormOffset()), 0
	case arch.Scale:
		return 1, 0
	case arch.Decay:
		return -3, 0
	case arch.Taps:
		return 0, 1 / math.Sqrt(float64(l.Shape[2]))
	case arch.Residual:
		return 0, 1 / math.Sqrt(float64(l.Shape[1])) / math.Sqrt(2*float64(cfg.Layers))
	}
	return 0, 1 / math.Sqrt(float64(l.Shape[1]))
}

// Load makes a model with the weights of a checkpoint. It reads a few rows at a time.
func Load(ctx context.Context, dev *torch.Device, src *weights.Source, opt Options) (*Model, error) {
	cfg := src.Config()
	if err := src.Check(); err != nil {
		return nil, err
	}
	if opt.Quantised {
		return loadQuantised(ctx, dev, src, opt)
	}
	m, err := allocate(ctx, dev, cfg, opt)
	if err != nil {
		return nil, err
	}
	err = m.fill(ctx, func(_ arch.Leaf, t arch.Tensor, from int64, dst []float32) error { return rowsOf(src, t)(from, dst) })
	if err != nil {
		m.Close(ctx)
		return nil, err
	}
	m.form, m.inF32 = src.Form(), src.Wide()
	return m, nil
}

// HF returns the content of a model folder, in the layout of the folder from which the model was loaded. read fills dst
// with all values of a tensor.
func (m *Model) HF(read func(name string, dst []float32) error) weights.HF {
	return weights.HF{Config: m.Config, Read: read, Form: m.form, Wide: m.inF32}
}

// prepare makes a model without tensors.
func prepare(dev *torch.Device, cfg arch.Config) (*Model, error) {
	if err := usable(dev.Spec(), dev.IsCUDA()); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return &Model{Config: cfg, Device: dev, Layout: cfg.Layout()}, nil
}

// rotary makes the rotary tables.
func (m *Model) rotary(s *torch.Scope, opt Options) {
	m.positions = m.Config.MaxPosition
	if opt.MaxPosition > 0 && opt.MaxPosition < m.positions {
		m.positions = opt.MaxPosition
	}
	m.rotations = rotationsOf(s, &m.Config, m.positions)
	m.heads = headTablesOf(s, &m.Config, m.positions)
}

// allocate makes the buffers and the leaf views, without values.
func allocate(ctx context.Context, dev *torch.Device, cfg arch.Config, opt Options) (*Model, error) {
	m, err := prepare(dev, cfg)
	if err != nil {
		return nil, err
	}
	err = dev.Do(ctx, func(s *torch.Scope) error {
		if err := m.allocateBuffers(s, opt); err != nil {
			return err
		}
		m.rotary(s, opt)
		if opt.Gathered {
			m.leaves = m.gatheredViews(s)
		} else {
			m.leaves = m.views(s, m.Compute)
		}
		m.Decoder = m.decoder(m.leaves, m.leaves)
		m.Generation = &m.Decoder
		if m.Half != nil && !dev.IsCUDA() && !opt.Gathered {
			m.halves = m.views(s, m.Half)
			if m.Master != nil && !m.apart() {
				m.wide = m.views(s, m.Master.Tensor)
			} else {
				m.wide = m.wideVectors(s)
			}
			m.Generation = m.generation()
		}
		return nil
	})
	if err != nil {
		m.Close(ctx)
		return nil, fmt.Errorf("model: allocating %d parameters: %w", m.Layout.Numel, err)
	}
	return m, nil
}

// allocateBuffers makes Master, Half and Compute.
func (m *Model) allocateBuffers(s *torch.Scope, opt Options) (err error) {
	half, rank, size := opt.Compute == torch.BFloat16, opt.Rank, opt.Size
	if !half && !opt.Gathered || size == 0 {
		rank, size = 0, 1
	}
	m.share = ranks.ShareOf(Blocks(m.Layout, opt.Gathered), rank, size)
	if !half || !opt.Frozen {
		if m.Master, err = NewBuffer(s, m.share.Numel(), half && opt.HostMaster); err != nil {
			return err
		}
		m.Compute = m.Master.Tensor
	}
	if half || opt.HalfCopy && !opt.Gathered {
		n := m.Layout.Numel
		if opt.Gathered {
			n = m.share.Numel()
		}
		m.Half = s.Keep(s.Empty(torch.BFloat16, n))
	}
	if half {
		m.Compute = m.Half
	}
	return nil
}

// Blocks returns the blocks of parameters that ranks divide among them. If gathered is set, whole experts belong to ranks.
func Blocks(layout *arch.Layout, gathered bool) (all []ranks.Block) {
	for _, l := range layout.Leaves {
		all = ranks.Extend(all, blockOf(l, gathered))
	}
	return all
}

func blockOf(l arch.Leaf, gathered bool) ranks.Block {
	b := ranks.Block{Run: ranks.Run{From: l.Offset, To: l.Offset + l.Numel()}, Layer: l.Layer}
	if gathered && l.Experts > 0 {
		b.Expert = l.Numel() / int64(l.Experts)
	}
	return b
}

// views returns the leaves as views of a flat buffer.
func (m *Model) views(s *torch.Scope, flat *torch.Tensor) (all []*torch.Tensor) {
	for _, l := range m.Layout.Leaves {
		all = append(all, s.Keep(flat.Narrow(0, l.Offset, l.Numel()).View(l.Shape...).Detach()))
	}
	return all
}

// wideVectors returns views of Half for the matrices, and fp32 tensors for norms and biases. SyncHalf fills the fp32
// tensors.
func (m *Model) wideVectors(s *torch.Scope) []*torch.Tensor {
	all := m.views(s, m.Half)
	for i, l := range m.Layout.Leaves {
		if l.Vector() {
			all[i].Drop()
			all[i] = s.Keep(s.Empty(torch.Float32, l.Shape...))
		}
	}
	return all
}

// decoder binds leaves to the layers: the matrices of linear maps come from matrices, all other tensors from rest. adapters
// holds the adapters of several models, in the order of their indices.
func (m *Model) decoder(matrices, rest []*torch.Tensor, adapters ...map[string]torch.LoRA) Decoder {
	at := map[string]int{}
	for i, l := range m.Layout.Leaves {
		at[l.Name] = i
	}
	from := func(leaves []*torch.Tensor) func(name string) *torch.Tensor {
		return func(name string) *torch.Tensor {
			if i, ok := at[name]; ok {
				return leaves[i]
			}
			return nil // this architecture has no such parameter
		}
	}
	matrix, other := from(matrices), from(rest)
	held := func(name string, tensor func(string) *torch.Tensor) torch.Matrix {
		if i, ok := at[name]; ok && m.quantised != nil && m.quantised[i] != nil {
			return m.quantised[i]
		}
		return tensor(name)
	}
	linearOf := func(name string) linear {
		return linear{held(name, matrix), other(name + "_bias"), named(adapters, name)}
	}
	d := Decoder{cfg: &m.Config, embed: held("embed", other), norm: other("norm"), head: held("head", matrix)}
	if m.Config.LayerInputs() > 0 {
		d.inputs = &inputs{embed: held("inputs_embed", other), project: linearOf("inputs"), norm: other("inputs_norm")}
	}
	if m.Config.Tied {
		d.head = held("embed", matrix)
	}
	routed := 0
	for i := range m.Config.Layers {
		p := fmt.Sprintf("layers.%d.", i)
		rotary, _ := m.Config.Rotary(i)
		l := layer{
			cfg: &m.Config, rotation: m.rotations[rotary], index: i,
			order: m.heads.orders[columnsOf(&m.Config, i)], growth: m.heads.growth, factor: other(p + arch.FactorLeaf),
			inputNorm: other(p + "input_norm"), postNorm: other(p + "post_norm"),
			attendedNorm: other(p + "attended_norm"), mlpNorm: other(p + "mlp_norm"),
			qkv: linearOf(p + "qkv"), o: linearOf(p + "o"),
			qNorm: other(p + "q_norm"), kNorm: other(p + "k_norm"), sinks: other(p + "sinks"),
			gateUp: linearOf(p + "gate_up"), down: linearOf(p + "down"),
		}
		if m.Config.Convolves(i) {
			l.conv = &shortConv{in: linearOf(p + "conv_in"), out: linearOf(p + "conv_out"), ShortConv: torch.ShortConv{Weight: other(p + "conv"), Bias: other(p + "conv_bias")}}
		}
		if m.Config.Recurs(i) {
			g := m.Config.GatedDelta
			l.delta = &gatedDelta{in: linearOf(p + "delta_in"), out: linearOf(p + "delta_out"), norm: other(p + "delta_norm"), sizes: g, eps: m.Config.RMSEps,
				conv: torch.ShortConv{Weight: other(p + "conv"), SiLU: true},
				aLog: other(p + "a_log"), dtBias: other(p + "dt_bias")}
		} else if m.Config.GatedAttention() {
			l.gates = m.heads.gates
		}
		if l.qNorm != nil {
			l.vNorm = m.heads.ones[valueNorm{m.Config.HeadDimOf(i), l.qNorm.DType()}]
		}
		if d.inputs != nil {
			l.own = &ownInput{gate: linearOf(p + "input_gate"), up: linearOf(p + "input_up"), norm: other(p + "own_norm")}
		}
		if m.Config.HasExperts(i) {
			l.mixture = &mixture{index: routed, router: other(p + "router"), routerBias: other(p + "router_bias"),
				experts: torch.MLPs{GateUp: matrix(p + "experts_gate_up"), Down: matrix(p + "experts_down"),
					GateUpBias: other(p + "experts_gate_up_bias"), DownBias: other(p + "experts_down_bias"), Gates: gatesOf(&m.Config)},
				perToken: m.Config.Mixture.PerToken, normalise: m.Config.Mixture.Normalise,
				sigmoid: m.Config.Mixture.Sigmoid, choiceBias: other(p + arch.ChoiceBiasLeaf),
				hasShared:    m.Config.Mixture.Shared > 0,
				sharedGateUp: linearOf(p + "shared_gate_up"), sharedDown: linearOf(p + "shared_down"), sharedGate: linearOf(p + "shared_gate")}
			if m.Config.ExpertsBesideMLP() {
				l.mixture.beside = &beside{input: other(p + "experts_norm"), output: other(p + "routed_norm"), dense: other(p + "dense_norm"),
					router: other(p + "router_norm"), scales: other(p + "expert_scales")}
			}
			routed++
		}
		d.layers = append(d.layers, l)
	}
	return d
}

// Head returns the output projection [VocabSize, Hidden], with the cap of its logits if the family has one. For a tied model it is the
// embedding.
func (d *Decoder) Head() torch.Matrix {
	if d.cfg.LogitCap > 0 {
		return torch.Capped{Matrix: d.head, Cap: d.cfg.LogitCap}
	}
	return d.head
}

// HeadMatrix returns the matrix of Head.
func (d *Decoder) HeadMatrix() torch.Matrix { return d.head }

// DType returns the type of the activations.
func (d *Decoder) DType() torch.DType { return d.norm.DType() }

// MaxPosition returns the number of rows of the rotary tables.
func (m *Model) MaxPosition() int { return m.positions }

// Hidden computes the forward pass without the head: given ids int32 [T] it returns the normalised hidden states [T,
// Hidden] of the last layer. Call it inside Device.Do.
func (d *Decoder) Hidden(s *torch.Scope, ids *torch.Tensor, pass Pass) *torch.Tensor {
	x := d.embedded(ids)
	pass.inputs = d.inputsOf(s, ids, x, pass)
	h := d.normOf(x, 0)
	for i := range d.layers {
		oldX, oldH := x, h
		s.Scoped(func() { // free all tensors of the block except its result
			sum, out := d.layers[i].forward(i, oldX, oldH, pass)
			x, h = addNorm(d.cfg, sum, out, d.normBefore(i+1))
			s.Hoist(x)
			if h != x {
				s.Hoist(h)
			}
			hoistKept(s, pass, i)
		})
		oldX.Drop()
		oldH.Drop()
	}
	return scaled(h, d.cfg.HiddenScale())
}

// embedded returns the embedding of ids in the type of the norms, scaled if the family scales it. In bf16 the scale is
// rounded to bf16.
func (d *Decoder) embedded(ids *torch.Tensor) *torch.Tensor {
	return d.rowsOf(d.embed, ids, d.cfg.EmbeddingScale())
}

// rowsOf are rows of an embedding in the type of the norms, scaled.
func (d *Decoder) rowsOf(embedding torch.Matrix, ids *torch.Tensor, scale float64) *torch.Tensor {
	x := torch.Embedding(embedding, ids)
	if held := x; held.DType() != d.norm.DType() {
		x = held.To(d.norm.DType())
		held.Drop()
	}
	switch {
	case scale == 1:
		return x
	case x.DType() == torch.BFloat16:
		return x.Scale(float64(toBFloat16(float32(scale))))
	}
	return x.Scale(float64(float32(scale)))
}

// toBFloat16 rounds to the nearest bf16, ties to even.
func toBFloat16(v float32) float32 {
	bits := math.Float32bits(v)
	return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
}

// normBefore returns the weight of the norm before layer i, nil if the family has none. After the last layer it is the
// final norm.
func (d *Decoder) normBefore(i int) *torch.Tensor {
	if i == len(d.layers) {
		return d.norm
	}
	return d.layers[i].inputNorm
}

func (d *Decoder) normOf(x *torch.Tensor, i int) *torch.Tensor {
	h := norm(d.cfg, x, d.normBefore(i))
	if i == len(d.layers) {
		return scaled(h, d.cfg.HiddenScale())
	}
	return h
}

// scaled multiplies x by a constant of the family.
func scaled(x *torch.Tensor, factor float64) *torch.Tensor {
	if factor == 1 {
		return x
	}
	return x.Scale(factor)
}

// norm returns the RMSNorm of x; without a weight it returns x.
func norm(c *arch.Config, x, weight *torch.Tensor) *torch.Tensor {
	if weight == nil {
		return x
	}
	return torch.RMSNorm(x, weight, c.NormOffset(), c.RMSEps)
}

// addNorm returns x + out and its norm, computed in one pass; without a weight both results are the sum. out may be nil.
func addNorm(c *arch.Config, x, out, weight *torch.Tensor) (sum, h *torch.Tensor) {
	if out == nil {
		return x, norm(c, x, weight)
	}
	if weight == nil {
		sum = x.Add(out)
		return sum, sum
	}
	return torch.AddRMSNorm(x, out, weight, c.NormOffset(), c.RMSEps)
}

// forward computes one decoder block: attention and an MLP, each added to the residual x [T, Hidden], with norms before
// them, after them, or both. h is the norm of x. The new residual is sum + out. The caller adds them, so that one kernel
// can add and normalise. A nil out adds nothing.
func (l *layer) forward(i int, x, h *torch.Tensor, pass Pass) (sum, out *torch.Tensor) {
	x, h = l.attended(i, x, h, pass)
	out = l.added(l.mlp(x, h, pass), l.mlpNorm)
	if l.own != nil {
		x = x.Add(out)
		out = l.own.of(l, x, pass)
	}
	if l.factor == nil {
		return x, out
	}
	return x.Add(out).Mul(l.factor.Detach().To(x.DType())), nil
}

// added returns the term that is added to the residual stream, given the output of attention or of an MLP. weight may be
// nil.
func (l *layer) added(out, weight *torch.Tensor) *torch.Tensor {
	return scaled(norm(l.cfg, out, weight), l.cfg.ResidualScale())
}

// attended returns the residual after attention, or what the layer has in its place, and its norm.
func (l *layer) attended(i int, x, h *torch.Tensor, pass Pass) (sum, normed *torch.Tensor) {
	var out *torch.Tensor
	switch {
	case l.conv != nil:
		out = l.conv.of(i, h, pass)
	case l.delta != nil:
		out = l.delta.of(i, h, pass)
	default:
		qkv := l.qkv.of(h, pass.Adapters)
		a := pass.Attention.Attend(i, qkv, l.heads(pass.Pos), l.sinks).View(-1, int64(l.cfg.Heads*l.cfg.HeadDimOf(i)))
		if l.gates != nil {
			a = torch.SigmoidGLU(qkv.IndexSelect(1, l.gates).Concat(a))
		}
		out = l.o.of(a, pass.Adapters)
	}
	return addNorm(l.cfg, x, l.added(out, l.attendedNorm), l.postNorm)
}

// heads describes how the product of queries, keys and values at the positions pos is split into heads.
func (l *layer) heads(pos *torch.Tensor) torch.Heads {
	h := torch.Heads{Heads: l.cfg.Heads, KVHeads: l.cfg.KVHeadsOf(l.index), QNorm: l.qNorm, KNorm: l.kNorm, Offset: l.cfg.NormOffset(), Eps: l.cfg.RMSEps,
		Cos: l.rotation.cos, Sin: l.rotation.sin, Pos: pos, NormsLast: l.cfg.NormsAfterRope(), Order: l.order, Growth: l.growth}
	switch {
	case l.cfg.KVLayer(l.index) != l.index:
		h.KVHeads, h.KNorm = 1, l.qNorm // see orderOf
	case l.cfg.ValueNorms():
		h.VNorm = l.vNorm
	}
	return h
}

// mlp applies the gated MLP, the layer's mixture of experts, or both, to h, the norm of x. Both are [T, Hidden].
func (l *layer) mlp(x, h *torch.Tensor, pass Pass) *torch.Tensor {
	switch {
	case l.mixture == nil:
		return l.gated(h, pass)
	case l.mixture.beside != nil:
		return l.besideMLP(x, l.gated(h, pass), pass)
	}
	return l.mixture.of(h, pass)
}

// gated applies the gated MLP to h [T, Hidden].
func (l *layer) gated(h *torch.Tensor, pass Pass) *torch.Tensor {
	gateUp := l.gateUp.of(h, pass.Adapters)
	if l.cfg.GELU() {
		return l.down.of(torch.GeGLU(gateUp), pass.Adapters)
	}
	return l.down.of(torch.SwiGLU(gateUp), pass.Adapters)
}

// Close frees the model's memory.
func (m *Model) Close(ctx context.Context) error {
	return m.Device.Do(ctx, func(*torch.Scope) error {
		for _, r := range m.rotations {
			r.cos.Drop()
			r.sin.Drop()
		}
		for _, views := range [][]*torch.Tensor{m.leaves, m.halves, m.wide, m.heads.tensors(), {m.Half, m.gathered.flat}} {
			for _, t := range views {
				if t != nil {
					t.Drop()
				}
			}
		}
		for _, q := range m.quantised {
			if q != nil {
				q.Drop()
			}
		}
		return m.Master.Drop()
	})
}
