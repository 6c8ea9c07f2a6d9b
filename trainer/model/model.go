// Package model computes one readable forward pass over bindings/torch for all decoder families of trainer/model/arch. It
// does not depend on any family by name: it computes with the tensors that a layout lists. The same code trains (packed
// sequences, autograd) and generates (rows against a key-value cache); only the Attention differs.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package model

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Model holds the weights of one decoder on one device. Master is nil if the weights are frozen in bf16. Master, Half and
// Compute are nil if the weights stay quantised.
type Model struct {
	Config arch.Config
	Device *torch.Device
	Layout *arch.Layout
	form   sourceForm // of the folder that the model was loaded from

	Master *Buffer     // [Layout.Numel], or a rank's share: the weights that the optimizer updates and checkpoints save
	share  ranks.Share // the share in Master; with Options.Gathered, the share in all buffers
	// bf16 weights. With a Master they are a copy of all weights. Without one they are the weights themselves. nil: none.
	Half    *torch.Tensor
	Compute *torch.Tensor // the weights of training's forward pass: Master or Half

	Training   *Decoder // over views of Compute
	Generation *Decoder // for generation: the same decoder or, on a CPU with a bf16 copy, a decoder that reads matrices from that copy

	leaves    []*torch.Tensor    // views of Compute, one per Layout.Leaves
	quantised []*torch.Quantised // with Options.Quantised, one per Layout.Leaves: a matrix in blocks; nil if leaves holds a tensor instead

	halves []*torch.Tensor // views of Half, if Generation reads Half and Master
	wide   []*torch.Tensor // fp32 norms and biases for generation: views of Master, or copies if forward passes cannot read Master

	gathered gatheredWeights // with Options.Gathered: leaves are views of it
	loaded   uint32          // with Options.Gathered: checksum of the weights as they were loaded

	module *boundModule // computes the forward pass, if Config.Module is set

	adapters map[string]torch.LoRA // keyed by the leaf to which they are added; nil: no adapters

	tables tables
}

// sourceForm describes the folder of a model, for copies in the same form.
type sourceForm struct {
	form  *weights.Form   // nil if the folder holds only a language model
	inF32 map[string]bool // names of tensors in float32 among others of 16 bits
}

// Options sets the precision of a model and the size of its rotary tables.
type Options struct {
	Compute     torch.DType // torch.Float32 or torch.BFloat16
	HalfCopy    bool        // keep a bf16 copy next to float32: generation on a CPU then reads half as many bytes
	Frozen      bool        // only adapters are trained: in bf16 the model has no Master
	HostMaster  bool        // in bf16, Master is in host memory
	Quantised   bool        // keep matrices in the blocks of a GGUF file: only adapters can then be trained
	MaxPosition int         // rows of the rotary tables; 0 means the config's limit
	Module      string      // path of the TorchScript module, for a configuration with arch.Module

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

// initial returns the mean and the standard deviation of a leaf's values. At least one of them is 0. A decay of -3 makes
// the states of gated delta rules lose a twentieth with each token, softplus(-3).
func initial(cfg *arch.Config, l arch.Leaf) (mean float32, std float64) {
	switch l.Kind {
	case arch.Bias:
		return 0, 0
	case arch.Norm:
		return float32(1 - cfg.Features().NormOffset), 0
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
	m.form = sourceForm{src.Form(), src.Wide()}
	return m, nil
}

// HF returns the content of a model folder, in the layout of the folder from which the model was loaded. read fills dst
// with all values of a tensor.
func (m *Model) HF(read func(name string, dst []float32) error) weights.HF {
	return weights.HF{Config: m.Config, Read: read, Form: m.form.form, Wide: m.form.inF32}
}

// prepare makes a model without tensors.
func prepare(dev *torch.Device, cfg arch.Config) (*Model, error) {
	if err := usable(dev.Spec(), dev.IsCUDA()); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return &Model{Config: cfg, Device: dev, Layout: cfg.Layout()}, nil
}

// allocate makes the buffers and the leaf views, without values.
func allocate(ctx context.Context, dev *torch.Device, cfg arch.Config, opt Options) (*Model, error) {
	if err := CheckModuleNamed(cfg, opt.Module); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	m, err := prepare(dev, cfg)
	if err != nil {
		return nil, err
	}
	err = dev.Do(ctx, func(s *torch.Scope) error {
		if err := m.allocateBuffers(s, opt); err != nil {
			return err
		}
		m.tables = tablesOf(s, &m.Config, opt.MaxPosition)
		if cfg.Module != nil {
			return bindModule(m, s, opt.Module)
		}
		if opt.Gathered {
			m.gathered, m.leaves = gather(s, m.Layout, m.share, m.Compute)
		} else {
			m.leaves = views(s, m.Layout, m.Compute)
		}
		m.Training = m.decoder(m.leaves, m.leaves)
		m.Generation = m.Training
		if m.Half != nil && !dev.IsCUDA() && !opt.Gathered {
			m.halves = views(s, m.Layout, m.Half)
			if m.Master != nil && !m.masterUnreadable() {
				m.wide = views(s, m.Layout, m.Master.Tensor)
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
		m.Half = torch.KeptEmpty(s, torch.BFloat16, n)
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
	b := ranks.Block{Span: ranks.Span{From: l.Offset, To: l.Offset + l.Numel()}, Layer: l.Layer}
	if gathered && l.Experts > 0 {
		b.Expert = l.Numel() / int64(l.Experts)
	}
	return b
}

// views returns the leaves as views of a flat buffer.
func views(s *torch.Scope, layout *arch.Layout, flat *torch.Tensor) (all []*torch.Tensor) {
	for _, l := range layout.Leaves {
		all = append(all, s.Keep(flat.Narrow(0, l.Offset, l.Numel()).View(l.Shape...).Detach()))
	}
	return all
}

// wideVectors returns views of Half for the matrices, and fp32 tensors for norms and biases. syncHalf fills the fp32
// tensors.
func (m *Model) wideVectors(s *torch.Scope) []*torch.Tensor {
	all := views(s, m.Layout, m.Half)
	for i, l := range m.Layout.Leaves {
		if l.Vector() {
			all[i].Drop()
			all[i] = torch.KeptEmpty(s, torch.Float32, l.Shape...)
		}
	}
	return all
}

// MaxPosition returns the number of rows of the rotary tables.
func (m *Model) MaxPosition() int { return m.tables.positions }

// Close frees the model's memory.
func (m *Model) Close(ctx context.Context) error {
	return m.Device.Do(ctx, func(*torch.Scope) error {
		if m.module != nil {
			m.module.Drop()
			m.leaves = nil
		}
		m.tables.drop()
		for _, views := range [][]*torch.Tensor{m.leaves, m.halves, m.wide, {m.Half, m.gathered.flat}} {
			for _, t := range views {
				t.Drop()
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
