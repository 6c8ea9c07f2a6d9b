package measure

import (
	"context"
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
	Only    string // cases whose label contains this
	Log     func(format string, args ...any)
	Save    func(*Results) error // after every row; may be nil
}

// Schedule is how often providers are sampled under these options.
func (o Options) Schedule() Schedule {
	s := DefaultSchedule
	if o.Quick {
		s = QuickSchedule
	}
	s.Log = o.Log
	return s
}

// Case is one row of a suite. Measure gives the row complete but for Finish.
type Case struct {
	Label   string // what Only looks at
	Measure func(ctx context.Context) (Row, error)
}

// rowSamples is how often each ceiling is measured before a row.
const rowSamples = 3

// Run measures the machine's ceilings and then all cases, each after its own ceilings: a machine that others use is not
// always as fast. With an error it returns the rows that were finished before.
func Run(ctx context.Context, suite string, o Options, cases []Case) (*Results, error) {
	r := &Results{Suite: suite, Date: time.Now().UTC().Format(time.DateTime), LoadBefore: LoadAverage()}
	var err error
	if r.Machine, err = Examine(o.Commit, o.Device, o.Threads); err != nil {
		return r, err
	}
	if r.Ceilings, err = MeasureCeilings(ctx, o.Device, o.Threads, o.Schedule().Samples); err != nil {
		return r, err
	}
	for _, c := range cases {
		if !strings.Contains(c.Label, o.Only) {
			continue
		}
		before := r.Ceilings
		if !o.Quick {
			if before, err = MeasureCeilings(ctx, o.Device, o.Threads, rowSamples); err != nil {
				return r, err
			}
		}
		row, err := c.Measure(ctx)
		if err != nil {
			return r, err
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
	if len(r.Rows) == 0 {
		return r, fmt.Errorf("no case of the suite %s contains %q", suite, o.Only)
	}
	return r, nil
}
