// Package track forwards the records of a run to an experiment tracker (Weights & Biases, MLflow or TensorBoard)
// through its own Python package.
//
// It reads metrics.jsonl, of a run in progress or of a finished one. It does not store any state: the file only grows, so
// the n-th row is always the same, and the tracker reports which rows it already has.
package track

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// Run describes a run to a tracker.
type Run struct {
	ID     string            // 16 hex digits: the same after a resume or a move, and different for every other run
	Name   string            // run.name
	Dir    string            // the run's folder
	Began  time.Time         // time of the first record
	Params map[string]string // settings on which the workers agree, by key, as YAML
}

// Row is the part of a record that a tracker receives.
type Row struct {
	Index      int64     // number of the row in its run, from 0
	Step       int64     // the x axis
	Time       time.Time // time of the record, UTC
	Values     map[string]float64
	Histograms map[string]map[string]int64 // by name, the number of occurrences of each integer
}

// Tracker is a run at an experiment tracker.
type Tracker interface {
	// Log sends rows in the order of their Index. It omits rows that the tracker already has. Every process that forwards a
	// run starts with row 0.
	Log(ctx context.Context, rows []Row) error
	// Close waits until everything is delivered. complete means that the run has made its last step.
	Close(ctx context.Context, complete bool) error
}

// Opener connects to a tracker: it continues the run with this ID, or begins it.
type Opener func(ctx context.Context, run Run) (Tracker, error)

// Sum counts the lines that were read.
type Sum struct {
	Rows     int64 // records that the tracker has
	Repeated int64 // records of steps that were reported before
	Damaged  int64 // unreadable lines
	Complete bool  // the run has made its last step
}

const (
	chunk = 1000 // largest number of rows that are read at once
	pause = time.Second
)

// Forward forwards the records of the run in the folder dir. With follow it waits for further records until the run is
// complete or ctx ends, which is not an error. It also waits for a run that has not begun yet.
func Forward(ctx context.Context, dir string, follow bool, open Opener) (Sum, error) {
	if !follow {
		return forwardWhile(ctx, dir, nil, open)
	}
	return forwardWhile(ctx, dir, func() bool { return sleep(ctx, pause) }, open)
}

// forwardWhile does the work of Forward. Whenever all records are forwarded it calls more, which waits and reports whether
// to continue reading. If more is nil, it does not wait.
func forwardWhile(ctx context.Context, dir string, more func() bool, open Opener) (sum Sum, err error) {
	log := &tail{dir: dir}
	defer func() { err = errors.Join(err, log.close()) }()
	var to Tracker
	defer func() {
		if to != nil {
			err = errors.Join(err, to.Close(context.WithoutCancel(ctx), log.sum.Complete && err == nil))
		}
	}()
	for {
		rows, err := log.next(chunk)
		switch {
		case errors.Is(err, fs.ErrNotExist) && more == nil:
			return log.sum, fmt.Errorf("%w: give the folder of a run, such as runs/NAME", err)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return log.sum, err
		case len(rows) > 0:
			if to == nil {
				if to, err = begin(ctx, log, rows[0], open); err != nil {
					return log.sum, err
				}
			}
			if err := to.Log(ctx, rows); err != nil {
				return log.sum, err
			}
		case to == nil && more == nil:
			return log.sum, fmt.Errorf("%s does not contain a finished step or evaluation yet; --follow waits for them", dir)
		case more == nil || log.sum.Complete || !more():
			return log.sum, nil
		}
	}
}

// begin opens the tracker when there is a record to forward, because the run has written its configuration by then.
func begin(ctx context.Context, log *tail, first Row, open Opener) (Tracker, error) {
	cfg, err := config.Load(filepath.Join(log.dir, "config.yaml"), nil)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration in the run's folder: %w", err)
	}
	params := cfg.Shared()
	delete(params, "agents") // a list of names in addition to the sections with these names
	return open(ctx, Run{ID: log.id(cfg.Run.Name), Name: cfg.Run.Name, Dir: log.dir, Began: first.Time, Params: params})
}

// sleep waits for d. It returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
