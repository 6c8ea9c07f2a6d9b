// Package kernels measures every kernel beside PyTorch's way of doing the same: `mgrpo bench kernels`.
//
// Kernels of the RL part are called through bindings/kernels, layers through bindings/torch, as training calls them.
// The error is against plain Go in float64 for the former and against the same operation on float64 tensors, which
// LibTorch's operators compute, for the latter.
package kernels

import (
	"cmp"
	"context"
	"errors"
	"maps"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Options of a run; Only looks at "name, shape".
type Options = measure.Options

// dims are a case's sizes, by names that the peers use too; "backward" is 0 or 1.
type dims map[string]int64

const half = "half" // 1: numbers are in bf16

// workload is a kernel at one size.
type workload struct {
	name    string
	dims    dims
	shape   string
	dtype   string // "" for float32
	bytes   measure.Amount
	reads   bool // writes next to nothing: its floor is that of reading
	flops   measure.Amount
	caches  []measure.Cache
	peers   []string
	targets []measure.Target
	open    func(d *desk, n dims) *measure.Native

	peerDType string // "" for ours; "float32" takes half from the peers' dims
}

// Run measures all cases of the suite, or those of a shape.
func Run(ctx context.Context, o Options, shape Shape) (r *measure.Results, err error) {
	dev, err := torch.Open(o.Device, o.Threads)
	if err != nil {
		return nil, err
	}
	o, end := o.Hosted()
	defer func() { err = errors.Join(err, end(), dev.Close()) }()
	workloads := full()
	switch {
	case shape.workloads != nil:
		workloads = shape.workloads
	case o.Quick:
		workloads = quick()
	case dev.IsCUDA():
		workloads = gpu()
	}
	var cases []measure.Case
	for _, w := range workloads {
		if w.dtype == measure.BF16Factors && (dev.IsCUDA() || !w.rounds()) {
			continue
		}
		if dev.IsCUDA() {
			if w.name == "linear" { // LibTorch's own there
				continue
			}
			w.caches = coldOnly // a GPU's cache holds what the last launch left there, which differs from run to run
		}
		for _, cache := range w.caches {
			cases = append(cases, measure.Case{Label: w.label() + ", " + w.shape, Measure: func(ctx context.Context) (measure.Row, error) {
				return o.Schedule().Measure(ctx, w.row(cache), w.openers(dev, o))
			}})
		}
	}
	return measure.Run(ctx, "kernels", o, cases)
}

// rounds says whether run.matmul: bf16 has an effect on the case on this processor. Products with bf16 weights have it with avx512_bf16 alone.
func (w workload) rounds() bool {
	defer torch.RoundFactors(false)
	return torch.RoundFactors(true) && (w.name != "linear" || kernels.ISA() == "avx512")
}

// label is the name with its pass and its type of numbers.
func (w workload) label() string {
	label := w.name
	if w.dims["backward"] == 1 {
		label += " fwd+bwd"
	}
	if w.dtype != "" {
		label += ", " + w.dtype
	}
	return label
}

func (w workload) row(cache measure.Cache) measure.Row {
	return measure.Row{Suite: "kernels", Name: w.label(), Shape: w.shape, DType: cmp.Or(w.dtype, "float32"), PeerDType: w.peerDType, Cache: cache,
		Bytes: w.bytes, ReadOnly: w.reads, FLOPs: w.flops, Targets: append([]measure.Target(nil), w.targets...)}
}

// OnCPU are the rows of a processor, not measured. Some processors have no use for those whose factors are rounded.
func OnCPU() []measure.Row { return coldRows(full()) }

// OnGPU are the rows of a GPU, not measured: names, shapes, formulas and targets.
func OnGPU() []measure.Row { return coldRows(gpu()) }

func coldRows(all []workload) (rows []measure.Row) {
	for _, w := range all {
		rows = append(rows, w.row(measure.Cold))
	}
	return rows
}

func (w workload) openers(dev *torch.Device, o Options) []measure.Opener {
	all := []measure.Opener{{Name: measure.Ours, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) {
		p, err := w.native(ctx, dev)
		return p, measure.Setup{Settings: map[string]any{"threads": o.Threads}}, err
	}}}
	if !o.Peers {
		return all
	}
	peers := measure.PeersOf(o)
	sizes := w.dims
	if w.peerDType == "float32" {
		sizes = maps.Clone(sizes)
		delete(sizes, half)
	}
	for _, name := range w.peers {
		all = append(all, peers.Opener(name, map[string]any{"suite": "kernels", "name": w.name, "dims": sizes}))
	}
	return all
}

func (w workload) native(ctx context.Context, dev *torch.Device) (*measure.Native, error) {
	var p *measure.Native
	d := &desk{dev: dev, real: torch.Float32}
	if w.dims[half] == 1 {
		d.real = torch.BFloat16
	}
	err := d.do(ctx, func() error {
		p = w.open(d, w.dims)
		return nil
	})
	if err != nil {
		d.clear(ctx)
		return nil, err
	}
	p.Around, p.Clock = d.do, d.clock
	p.Done = func() error { return d.clear(context.Background()) }
	return p, nil
}
