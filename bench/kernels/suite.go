// Package kernels measures every kernel next to PyTorch's equivalent: `mgrpo bench kernels`.
//
// Kernels of the RL part are called through bindings/kernels, layers through bindings/torch, as training calls them.
// The reference for errors is plain Go in float64 for the former. For the latter it is the same operation on float64 tensors, which
// LibTorch's operators compute.
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

// Options holds the settings of a run. Only matches "name, shape".
type Options = measure.Options

// dims holds a case's sizes by name. The peers use the same names. "backward" is 0 or 1.
type dims map[string]int64

const half = "half" // 1: numbers are in bf16

// workload is a kernel at one size.
type workload struct {
	name    string
	dims    dims
	shape   string
	dtype   string // "" for float32
	bytes   measure.Amount
	reads   bool // almost only reads: its floor is the time of reading
	flops   measure.Amount
	caches  []measure.Cache
	peers   []string
	targets []measure.Target
	open    func(d *deviceTensors, n dims) *measure.Native

	peerDType string // "": as ours; "float32": the peers' dims lack half
}

// Run measures all cases of the suite, or only the cases of a shape.
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
			if w.name == "linear" { // on a GPU LibTorch's own operation
				continue
			}
			w.caches = coldOnly // a GPU's cache holds the last launch's data, which differs from run to run
		}
		for _, cache := range w.caches {
			cases = append(cases, measure.Case{Label: w.label() + ", " + w.shape, Measure: func(ctx context.Context) (measure.Row, error) {
				return o.Schedule().Measure(ctx, w.row(cache), w.openers(dev, o))
			}})
		}
	}
	return measure.Run(ctx, "kernels", o, cases)
}

// rounds reports whether run.matmul: bf16 changes the case on this processor. It changes products with bf16 weights only on processors
// with avx512_bf16 and without AMX.
func (w workload) rounds() bool {
	defer torch.SetRoundFactors(false)
	return torch.SetRoundFactors(true) && (w.name != "linear" || kernels.ISA() == "avx512")
}

// label returns the name with its pass and its type of numbers.
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

// OnCPU returns the rows of a processor without measurements. Rows with rounded factors do not apply to some processors.
func OnCPU() []measure.Row { return coldRows(full()) }

// OnGPU returns the rows of a GPU without measurements: names, shapes, formulas and targets.
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
	sizes := w.dims
	if w.peerDType == "float32" {
		sizes = maps.Clone(sizes)
		delete(sizes, half)
	}
	for _, name := range w.peers {
		all = append(all, o.Peer(name, map[string]any{"suite": "kernels", "name": w.name, "dims": sizes}))
	}
	return all
}

func (w workload) native(ctx context.Context, dev *torch.Device) (*measure.Native, error) {
	var p *measure.Native
	d := &deviceTensors{dev: dev, real: torch.Float32}
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
