// Package report draws a run's folder as a single, self-contained HTML file: curves, costs, and trajectories turn by
// turn; or it compares several runs. It reads only the files of the run, so it also works for a run that was interrupted
// or still runs.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// Options limits the content of the report. A zero field stands for its default.
type Options struct {
	Steps   int // training steps whose trajectories are included, with the first and the last; 1: only the last; default 5
	Queries int // queries of each step, with all rollouts of a query; default 6
	Bytes   int // size of all trajectories as JSON; default 4 MiB
}

// Report is a run, or several runs to compare.
type Report struct{ runs []*run }

// maxRuns is the largest number of runs to compare: each needs a distinct colour.
const maxRuns = 8

// Open reads folders. They are the folder of a run, the folders of a run whose agents ran on several servers, or the
// folders of several runs to compare. The report names missing files. Open returns an error if a folder does not contain
// files of a run, or if the runs cannot be compared.
func Open(dirs []string) (*Report, error) {
	if len(dirs) == 0 {
		return nil, errors.New("report: give at least one folder of a run, such as runs/NAME")
	}
	var folders []*runFolder
	for _, dir := range dirs {
		p, err := readRunFolder(dir)
		if err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		folders = append(folders, p)
	}
	r := &Report{}
	for _, folders := range runsOf(folders) {
		run, err := newRun(folders)
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

// Compares reports whether the report compares several runs.
func (r *Report) Compares() bool { return len(r.runs) > 1 }

// Write writes the report.
func (r *Report) Write(w io.Writer, opt Options) error {
	if r.Compares() {
		return writeComparison(w, r.runs)
	}
	opt = Options{cmp.Or(opt.Steps, 5), cmp.Or(opt.Queries, 6), cmp.Or(opt.Bytes, 4<<20)}
	reading, err := r.runs[0].sample(opt)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return write(w, r.runs[0], reading)
}

// Growing is a run that is still in progress, with its records so far.
type Growing struct {
	Agents  []string       // main agent first; the order determines the colours
	Records []metrics.Line // valid records, as metrics.History returns them
}

// Write writes the sections of the report that depend only on these records, as HTML without a frame: figures, curves,
// learning, costs and tools. They need Style and ChartScript.
func (g Growing) Write(w io.Writer) error {
	r := &run{agents: g.Agents, main: g.Agents[0], records: g.Records}
	return pageTemplate.ExecuteTemplate(w, "growing", r.sections())
}
