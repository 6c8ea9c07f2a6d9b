package track

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// Followers forwards the records of a run to the trackers of its configuration while the run writes them. A tracker that is
// slow or unreachable does not delay the run.
type Followers struct {
	ended chan struct{}
	work  sync.WaitGroup
}

// Check returns an error if a tracker of a configuration cannot work: the Python does not have
// its package, or there is no address of an MLflow server.
func Check(ctx context.Context, cfg *config.Config) error {
	if experiment := cfg.Tracking.MLflow; experiment != "" {
		if _, _, err := mlflowEnv(experiment); err != nil {
			return fmt.Errorf("tracking.mlflow: %w, or write URI/EXPERIMENT", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(trackers(cfg))) {
		if err := hasPackage(ctx, cfg.Tracking.Python, name); err != nil {
			return err
		}
	}
	return nil
}

// trackers returns the trackers of a configuration, by the names of their Python packages.
func trackers(cfg *config.Config) map[string]Opener {
	t, all := cfg.Tracking, map[string]Opener{}
	if t.WandB != "" {
		all["wandb"] = WandB(t.WandB, t.Python)
	}
	if t.MLflow != "" {
		all["mlflow"] = MLflow(t.MLflow, t.Python)
	}
	if t.TensorBoard != "" {
		all["tensorboard"] = TensorBoard(cfg.Resolve(t.TensorBoard), t.Python)
	}
	return all
}

// Ask asks the MLflow server of a configuration once for the experiment. It returns an error if
// the server does not answer, or refuses the user.
func Ask(ctx context.Context, cfg *config.Config) error {
	if cfg.Tracking.MLflow == "" {
		return nil
	}
	return askMLflow(ctx, cfg.Tracking.MLflow, cfg.Tracking.Python)
}

// Follow starts the followers of a configuration: none, if it names no tracker. It returns the error of Check. say gets
// the errors of trackers.
func Follow(ctx context.Context, cfg *config.Config, say func(format string, args ...any)) (*Followers, error) {
	if err := Check(ctx, cfg); err != nil {
		return nil, err
	}
	f := &Followers{ended: make(chan struct{})}
	for name, open := range trackers(cfg) {
		f.start(ctx, cfg.RunDir(), name, open, say)
	}
	return f, nil
}

// hasPackage returns an error if a Python does not have the package of a tracker's client.
func hasPackage(ctx context.Context, python, name string) error {
	const look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
	err := exec.CommandContext(ctx, python, "-c", look, name).Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("tracking.%s: %s does not have the package %[1]s: run %[2]s -m pip install %[1]s, or name another Python in tracking.python",
			name, python)
	}
	if err != nil {
		return fmt.Errorf("tracking.python: %w", err)
	}
	return nil
}

// start starts a follower. If several workers share a folder, one of them forwards the records.
func (f *Followers) start(ctx context.Context, dir, tracker string, open Opener, say func(string, ...any)) {
	last := false
	more := func() bool {
		if last || ctx.Err() != nil {
			return false
		}
		select {
		case <-f.ended:
			last = true // lines that were written before the end are still read
		case <-ctx.Done():
		case <-time.After(pause):
		}
		return true
	}
	f.work.Go(func() {
		_, err := forwardWhile(ctx, dir, more, alone(filepath.Join(dir, ".tracking-"+tracker+".lock"), open))
		if err != nil && !errors.Is(err, errTaken) && ctx.Err() == nil {
			say("tracking (%s) has ended, the run continues: %v; mgrpo track can forward the rest later", tracker, err)
		}
	})
}

// Finish waits until all records of the run are delivered, or the followers' context ends.
func (f *Followers) Finish() {
	close(f.ended)
	f.work.Wait()
}

var errTaken = errors.New("another process forwards this run")

// alone opens a tracker if no other process has opened one with the same lock file. Otherwise the error is errTaken.
func alone(lock string, open Opener) Opener {
	return func(ctx context.Context, run Run) (Tracker, error) {
		file, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return nil, err
		}
		if locked, _ := durable.TryLock(file, durable.Exclusive); !locked {
			return nil, errors.Join(errTaken, file.Close())
		}
		to, err := open(ctx, run)
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
		return &locked{to, file}, nil
	}
}

// locked is a tracker with a lock that is released when the tracker is closed.
type locked struct {
	Tracker
	lock *os.File
}

func (l *locked) Close(ctx context.Context, complete bool) error {
	return errors.Join(l.Tracker.Close(ctx, complete), l.lock.Close())
}
