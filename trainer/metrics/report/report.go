// Package report draws a run's folder as one HTML file that needs nothing else: curves, costs, and
// trajectories to read turn by turn. It reads what the run wrote and nothing of the running program, so
// a run that was interrupted or that is still going on can be looked at too.
package report

import (
	"errors"
	"fmt"
	"io"
	"os"
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

// Write writes the report of a run. dirs are its folders: one, or where each agent ran on a server of its
// own, theirs. Pieces that a run does not have are named in the report; it is an error if a folder is no run's.
func Write(w io.Writer, dirs []string, opt Options) error {
	if len(dirs) == 0 {
		return errors.New("report: no folder of a run")
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil {
			return fmt.Errorf("report: %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("report: %s is not a folder", dir)
		}
	}
	r, err := load(dirs)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	opt = opt.withDefaults()
	reading, err := r.sample(opt)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return write(w, r, reading)
}
