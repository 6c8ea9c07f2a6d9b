// Package report draws a run's folder as one HTML file that needs nothing else: curves, costs, and
// trajectories to read turn by turn; or several runs, to compare them. It reads what the run wrote and nothing of the running program, so
// a run that was interrupted or that is still going on can be looked at too.
package report

import (
	"errors"
	"fmt"
	"io"
)

// Options bound what goes into the file. The zero value of each means its default.
type Options struct {
	Steps   int // training steps whose trajectories are included, first and last among them; default 5
	Queries int // queries of each of them, all rollouts of a query; default 6
	Bytes   int // of all trajectories together, as JSON; default 4 MiB
}

func (o Options) withDefaults() Options {
	if o.Steps == 0 {
		o.Steps = 5
	}
	if o.Queries == 0 {
		o.Queries = 6
	}
	if o.Bytes == 0 {
		o.Bytes = 4 << 20
	}
	return o
}

// Report is one run, or several to compare.
type Report struct{ runs []*run }

// maxRuns is how many runs are compared at most: each has a colour of its own.
const maxRuns = 8

// Open reads folders: those of one run, one or, where each agent ran on a server of its own, theirs; or those of
// several runs, to compare them. Pieces that a run does not have are named in the report. It is an error if a folder is
// no run's, and if the runs have nothing in common.
func Open(dirs []string) (*Report, error) {
	if len(dirs) == 0 {
		return nil, errors.New("report: no folder of a run")
	}
	var parts []*part
	for _, dir := range dirs {
		p, err := readPart(dir)
		if err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		parts = append(parts, p)
	}
	r := &Report{}
	for _, parts := range runsOf(parts) {
		run, err := newRun(parts)
		if err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		r.runs = append(r.runs, run)
	}
	if err := related(r.runs); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return r, nil
}

// Compares says whether there is more than one run.
func (r *Report) Compares() bool { return len(r.runs) > 1 }

// Write writes the report.
func (r *Report) Write(w io.Writer, opt Options) error {
	if r.Compares() {
		return writeComparison(w, r.runs)
	}
	opt = opt.withDefaults()
	reading, err := r.runs[0].sample(opt)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return write(w, r.runs[0], reading)
}
