// Package phases measures the phases of a training step as a run goes through them, the engine's rollouts and the
// learner's update, and the whole step, beside Hugging Face's generate, its forward and backward pass, and TRL.
package phases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Options of a run, as those of bench/kernels.
type Options struct {
	Root    string // of the repository
	Threads int    // of every provider
	Peers   bool   // beside the peers, which make bench-peers brings
	Quick   bool   // a tiny random model, few samples: whether it runs, not how fast
	Only    string // cases whose name contains this
	Log     func(format string, args ...any)
	Save    func(*measure.Results) error // after every row; may be nil
}

// Run measures one suite. With an error it returns the rows that were finished before.
func Run(ctx context.Context, suite string, o Options) (*measure.Results, error) {
	r := &measure.Results{Suite: suite, Date: time.Now().UTC().Format(time.DateTime), LoadBefore: measure.Load(),
		Machine: measure.Examine(ctx, o.Threads)}
	var err error
	if r.Ceilings, err = ceilings(ctx, o); err != nil {
		return r, err
	}
	for _, c := range casesOf(suite, o.Quick) {
		if !strings.Contains(c.name, o.Only) {
			continue
		}
		row, err := c.measure(ctx, o)
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
	if len(r.Rows) == 0 {
		return r, fmt.Errorf("no case's name contains %q", o.Only)
	}
	return r, nil
}

func ceilings(ctx context.Context, o Options) (c measure.Ceilings, err error) {
	dev, err := torch.Open("cpu", o.Threads)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	return measure.MeasureCeilings(ctx, dev, o.plan().Samples)
}

// plan samples phases, which take seconds, five times.
func (o Options) plan() measure.Plan {
	p := measure.DefaultPlan
	if o.Quick {
		p = measure.QuickPlan
	}
	p.Log = o.Log
	return p
}
