// Package kernels measures every kernel beside PyTorch's way of doing the same: `mgrpo bench kernels`.
//
// Kernels of the RL part are called through bindings/kernels, layers through bindings/torch, as training calls them.
// The error is against plain Go in float64 for the former and against the same operation on float64 tensors, which
// LibTorch's operators compute, for the latter.
package kernels

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Options of a run.
type Options struct {
	Root    string // the repository, where the peers are
	Threads int
	Peers   bool
	Quick   bool   // tiny shapes, two samples
	Only    string // cases whose "name, shape" contains this
	Log     func(format string, args ...any)
	Save    func(*measure.Results) error // after every row; may be nil
}

// dims are a case's sizes, by the names that the peers know too; "backward" is 0 or 1.
type dims map[string]int64

// workload is a kernel at one size.
type workload struct {
	name    string
	dims    dims
	shape   string
	bytes   measure.Amount
	reads   bool // moves next to nothing but what it reads
	flops   measure.Amount
	caches  []measure.Cache
	peers   []string
	targets []measure.Target
	open    func(d *desk, n dims) *measure.Native
}

// Run measures all cases.
func Run(ctx context.Context, o Options) (*measure.Results, error) {
	dev, err := torch.Open("cpu", o.Threads)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	r := &measure.Results{Suite: "kernels", Date: time.Now().UTC().Format(time.DateTime), Machine: measure.Examine(ctx, o.Threads), LoadBefore: measure.Load()}
	plan, cases := measure.DefaultPlan, full()
	if o.Quick {
		plan, cases = measure.QuickPlan, quick()
	}
	if r.Ceilings, err = measure.MeasureCeilings(ctx, dev, plan.Samples); err != nil {
		return nil, err
	}
	plan.Log = o.Log
	for _, w := range cases {
		if !strings.Contains(w.label()+", "+w.shape, o.Only) {
			continue
		}
		for _, cache := range w.caches {
			row, err := plan.Measure(ctx, w.row(cache), w.openers(dev, o))
			if err != nil {
				return r, err
			}
			row.Finish(r.Ceilings)
			r.Rows = append(r.Rows, row)
			if o.Save == nil {
				continue
			}
			if err := o.Save(r); err != nil {
				return r, err
			}
		}
	}
	if len(r.Rows) == 0 {
		return r, fmt.Errorf("no case's name and shape contain %q", o.Only)
	}
	return r, nil
}

// label is the name with its pass.
func (w workload) label() string {
	if w.dims["backward"] == 1 {
		return w.name + " fwd+bwd"
	}
	return w.name
}

func (w workload) row(cache measure.Cache) measure.Row {
	return measure.Row{Suite: "kernels", Name: w.label(), Shape: w.shape, DType: "float32", Cache: cache,
		Bytes: w.bytes, ReadOnly: w.reads, FLOPs: w.flops, Targets: append([]measure.Target(nil), w.targets...)}
}

func (w workload) openers(dev *torch.Device, o Options) []measure.Opener {
	all := []measure.Opener{{Name: measure.Ours, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) {
		p, err := w.native(ctx, dev)
		return p, measure.Setup{Settings: map[string]any{"threads": o.Threads}}, err
	}}}
	if !o.Peers {
		return all
	}
	peers := measure.Peers{Root: o.Root, Threads: o.Threads}
	for _, name := range w.peers {
		all = append(all, peers.Opener(name, map[string]any{"suite": "kernels", "name": w.name, "dims": w.dims}))
	}
	return all
}

func (w workload) native(ctx context.Context, dev *torch.Device) (*measure.Native, error) {
	var p *measure.Native
	d := &desk{dev: dev}
	err := d.do(ctx, func() error {
		p = w.open(d, w.dims)
		return nil
	})
	if err != nil {
		d.clear(ctx)
		return nil, err
	}
	p.Around = d.do
	p.Done = func() error { return d.clear(context.Background()) }
	return p, nil
}
