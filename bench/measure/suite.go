package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Options holds the settings of a suite's run.
type Options struct {
	Root    string // of the repository, which contains the peers
	Commit  string // of this program
	Device  string // of all providers: "cpu", "cuda" or "cuda:N"
	Threads int    // of each provider
	Peers   bool   // measures the peers, too; make bench-peers installs them
	Quick   bool   // tiny shapes and few samples: shows that the suite runs
	Brief   bool   // three samples of each provider
	Only    string // runs only cases whose label contains this
	Host    *Host  // of the peers; nil: each peer has its own process
	Log     func(format string, args ...any)
	Save    func(*Results) error // after every row; may be nil
}

// Schedule returns the schedule for these options.
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

// Case is one row of a suite. Measure returns the row before Finish.
type Case struct {
	Label   string // the text that Only matches
	Measure func(ctx context.Context) (Row, error)
}

// Hosted returns the options with one process for all peers if the device is a GPU, and a function that ends the process.
func (o Options) Hosted() (Options, func() error) {
	if o.Peers && o.Device != "cpu" {
		o.Host = &Host{}
	}
	return o, o.Host.Close
}

// rowSamples is the number of measurements of each ceiling before a row. The median of three differed by a fifth from row to row.
const rowSamples = 9

// Run measures the machine's ceilings and then all cases. On a CPU it measures the ceilings again before each case, because the speed of a
// shared processor varies. If a case fails, its error is logged and returned with the rows of the other cases.
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
		if o.Quick { // two samples at tiny sizes support no comparison with the floor
			for i := range row.Providers {
				row.Providers[i].PercentOfFloor = 0
			}
			row.Targets = slices.DeleteFunc(row.Targets, func(t Target) bool { return t.Kind == Floor })
		}
		r.Rows = append(r.Rows, row)
		if o.Save == nil {
			continue
		}
		if err := o.Save(r); err != nil {
			return r, err
		}
	}
	if len(r.Rows) == 0 && len(failed) == 0 {
		var labels []string
		for _, c := range cases[:min(8, len(cases))] {
			labels = append(labels, c.Label)
		}
		return r, fmt.Errorf("no case of the suite %s contains %q; its first cases are %s", suite, o.Only, strings.Join(labels, ", "))
	}
	return r, errors.Join(failed...)
}
