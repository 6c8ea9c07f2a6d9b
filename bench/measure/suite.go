package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Options of a run of a suite.
type Options struct {
	Root    string // of the repository, where the peers are
	Commit  string // what this program was built from
	Device  string // where all providers compute: "cpu", "cuda" or "cuda:N"
	Threads int    // of every provider
	Peers   bool   // beside the peers, which make bench-peers brings
	Quick   bool   // tiny shapes, few samples: whether it runs, not how fast
	Brief   bool   // three samples of each provider
	Only    string // cases whose label contains this
	Host    *Host  // of the peers; nil: each has a process of its own
	Log     func(format string, args ...any)
	Save    func(*Results) error // after every row; may be nil
}

// Schedule is how often providers are sampled under these options.
func (o Options) Schedule() Schedule {
	s := DefaultSchedule
	switch {
	case o.Quick:
		s = QuickSchedule
	case o.Brief:
		s = BriefSchedule
	}
	s.Log = o.Log
	return s
}

// Case is one row of a suite. Measure gives the row complete but for Finish.
type Case struct {
	Label   string // what Only looks at
	Measure func(ctx context.Context) (Row, error)
}

// Hosted returns the options with one process for all peers where these compute on a GPU, and what ends that process.
func (o Options) Hosted() (Options, func() error) {
	if o.Peers && o.Device != "cpu" {
		o.Host = &Host{}
	}
	return o, o.Host.Close
}

// rowSamples is how often each ceiling is measured before a row.
const rowSamples = 3

// Run measures the machine's ceilings and then all cases, on a CPU each after its own ceilings: a processor that others use
// is not always as fast. A case that fails is logged and hides none: its error is returned with the rows of the others.
func Run(ctx context.Context, suite string, o Options, cases []Case) (*Results, error) {
	r := &Results{Suite: suite, Date: time.Now().UTC().Format(time.DateTime), LoadBefore: LoadAverage()}
	var err error
	if r.Machine, err = Examine(o.Commit, o.Device, o.Threads); err != nil {
		return r, err
	}
	if r.Ceilings, err = MeasureCeilings(ctx, o, o.Schedule().Samples); err != nil {
		return r, err
	}
	var failed []error
	for _, c := range cases {
		if !strings.Contains(c.Label, o.Only) {
			continue
		}
		before := r.Ceilings
		if !o.Quick && o.Device == "cpu" {
			if before, err = MeasureCeilings(ctx, o, rowSamples); err != nil {
				return r, err
			}
		}
		row, err := c.Measure(ctx)
		if ctx.Err() != nil {
			return r, errors.Join(append(failed, err)...)
		}
		if err != nil {
			o.Log("%v", err)
			failed = append(failed, err)
			continue
		}
		row.Ceilings = &before
		row.Finish(r.Ceilings)
		r.Rows = append(r.Rows, row)
		if o.Save == nil {
			continue
		}
		if err := o.Save(r); err != nil {
			return r, err
		}
	}
	if len(r.Rows) == 0 && len(failed) == 0 {
		return r, fmt.Errorf("no case of the suite %s contains %q", suite, o.Only)
	}
	return r, errors.Join(failed...)
}
