package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/checkpoint"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Options of a run beside its configuration.
type Options struct {
	Agents   []string // agents to run in this process; nil means all
	Resume   bool     // go on from the newest complete checkpoint
	Observer metrics.Observer
	Task     task.Task       // in place of the configured one; nil: that
	Stop     <-chan struct{} // closed to end the run, all its agents, with a checkpoint after the step in flight
}

// ErrStopped is a run that ended before its last step or evaluation because it was asked to, with a checkpoint.
var ErrStopped = errors.New("stopped before the end, as asked; --resume goes on")

// Train runs agents of a team until the configured last step. With every agent in one process and no
// store.url the store is embedded; else it is the Redis that the agents share.
func Train(ctx context.Context, cfg *config.Config, opt Options) error {
	dir := RunDir(cfg)
	var err error
	if opt.Task == nil {
		if opt.Task, err = OpenTask(cfg); err != nil {
			return err
		}
	}
	from, err := startingPoint(cfg, dir, opt)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, configFile), cfg.Dump(dir)); err != nil {
		return err
	}
	team, err := openTeam(ctx, cfg, opt, Setup{Dir: dir, From: from})
	if err != nil {
		return err
	}
	version := int64(0)
	if from != nil {
		version = from.Step
	}
	err = team.each(ctx, func(ctx context.Context, w *Worker) error { return w.Run(ctx, version) })
	if err == nil && slices.ContainsFunc(team.workers, func(w *Worker) bool { return w.stopped }) {
		err = ErrStopped
	}
	return errors.Join(err, team.close(context.WithoutCancel(ctx)))
}

// team is the workers of this process and what they share.
type team struct {
	store   *store.Store
	workers []*Worker
}

func openTeam(ctx context.Context, cfg *config.Config, opt Options, s Setup) (*team, error) {
	names := opt.Agents
	if names == nil {
		names = AgentNames(cfg)
	}
	t, err := opt.Task, error(nil)
	if t == nil {
		if t, err = OpenTask(cfg); err != nil {
			return nil, err
		}
	}
	options, err := StoreOptions(cfg)
	if err != nil {
		return nil, err
	}
	if options.URL == "" && len(names) < len(AgentNames(cfg)) {
		return nil, fmt.Errorf("store.url is not set: agents in processes of their own need a Redis to meet in")
	}
	out := &team{}
	if out.store, err = store.Open(ctx, options); err != nil {
		return nil, err
	}
	s.Config, s.Task, s.Store, s.Observer, s.Local, s.Stop = cfg, t, out.store, opt.Observer, len(names), opt.Stop
	for _, name := range names {
		w, err := Open(ctx, s, name)
		if err != nil {
			return nil, errors.Join(err, out.close(context.WithoutCancel(ctx)))
		}
		out.workers = append(out.workers, w)
	}
	return out, nil
}

// each runs f for every worker side by side; the first error stops the others, here and on other servers.
// Of several errors it returns the one that is not the consequence of another.
func (t *team) each(ctx context.Context, f func(context.Context, *Worker) error) error {
	g, gctx := errgroup.WithContext(ctx)
	errs := make([]error, len(t.workers))
	for i, w := range t.workers {
		g.Go(func() error {
			errs[i] = w.inPlace(gctx, f)
			if errs[i] == nil {
				return w.member.Leave(ctx)
			}
			errs[i] = fmt.Errorf("agent %s: %w", w.name, errs[i])
			w.breakOff(ctx, errs[i])
			return errs[i]
		})
	}
	err := g.Wait()
	var told *store.StopError // what others hear of an error, perhaps of one in this very process
	if !errors.As(err, &told) {
		return err
	}
	for _, e := range errs {
		if e != nil && !errors.As(e, &told) {
			return e
		}
	}
	return err
}

// inPlace runs f with a context that ends with the run and with the worker's place in it.
func (w *Worker) inPlace(ctx context.Context, f func(context.Context, *Worker) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	place := w.member.Context()
	defer context.AfterFunc(place, func() { cancel(context.Cause(place)) })()
	err := f(ctx, w)
	if errors.Is(err, context.Canceled) { // what was interrupted does not know why
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
	}
	return err
}

// breakOff ends the run for the others, who are told why, and leaves it.
func (w *Worker) breakOff(ctx context.Context, err error) {
	const patience = 5 * time.Second
	told, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if ctx.Err() != nil {
		_ = w.member.Stop(told, "interrupted")
	} else {
		_ = w.member.Fail(told, err.Error())
	}
	_ = w.member.Leave(told)
}

func (t *team) close(ctx context.Context) error {
	var errs []error
	for _, w := range t.workers {
		errs = append(errs, w.Close(ctx))
	}
	return errors.Join(append(errs, t.store.Close())...)
}

// RunDir is the run's folder.
func RunDir(cfg *config.Config) string { return cfg.Resolve(cfg.Run.Dir) }

// startingPoint is the checkpoint to continue, nil for a fresh run. A folder that holds checkpoints is
// never started over, and a resumed run has the settings it began with.
func startingPoint(cfg *config.Config, dir string, opt Options) (*checkpoint.Manifest, error) {
	run := checkpoint.Run{Dir: checkpointsDir(dir)}
	steps, err := run.List()
	if err != nil {
		return nil, err
	}
	if !opt.Resume {
		if len(steps) > 0 {
			return nil, fmt.Errorf("%s already holds checkpoints of steps %v: continue with --resume, or choose another run.dir", dir, steps)
		}
		return nil, nil
	}
	m, skipped, err := run.Latest()
	for _, s := range skipped {
		opt.Observer.Note("", fmt.Sprintf("checkpoint of step %d is passed over: %v", s.Step, s.Reason))
	}
	if err != nil {
		return nil, fmt.Errorf("--resume: %w", err)
	}
	if err := unchanged(cfg, filepath.Join(dir, configFile)); err != nil {
		return nil, err
	}
	if finished(cfg, m, opt.Task) {
		return nil, fmt.Errorf("--resume: the newest checkpoint is of step %d and run.steps is %d: nothing is left to train; raise run.steps", m.Step, cfg.Run.Steps)
	}
	if opt.Agents == nil || slices.Contains(opt.Agents, cfg.Main().Name) {
		if err := setAside(run, skipped); err != nil {
			return nil, fmt.Errorf("--resume: %w", err)
		}
	}
	opt.Observer.Note("", fmt.Sprintf("resuming from %s, step %d of %d", run.StepDir(m.Step), m.Step, cfg.Run.Steps))
	return &m, nil
}

// finished says whether the last step is made and, where queries are held out, its version evaluated.
func finished(cfg *config.Config, m checkpoint.Manifest, t task.Task) bool {
	if m.Step != cfg.Run.Steps || t.EvalSize() == 0 {
		return m.Step >= cfg.Run.Steps
	}
	var l ledger
	return json.Unmarshal(m.Ledger, &l) == nil && l.evaluated(m.Step)
}

// setAside renames checkpoints that were passed over: their steps are about to be made again, and what is
// damaged may still be looked at.
func setAside(run checkpoint.Run, skipped []checkpoint.Skipped) error {
	committed, err := run.List()
	if err != nil {
		return err
	}
	for _, s := range skipped {
		if !slices.Contains(committed, s.Step) {
			continue // unfinished: it is simply written again
		}
		from := run.StepDir(s.Step)
		to := from + ".damaged"
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if err := os.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func unchanged(cfg *config.Config, path string) error {
	old, err := config.Load(path, nil)
	if err != nil {
		return fmt.Errorf("--resume: the configuration the run began with: %w", err)
	}
	keepDecay(cfg, old)
	if keys := cfg.DiffForResume(old); len(keys) > 0 {
		return fmt.Errorf("--resume: these keys differ from the run's own and may not: %v", keys)
	}
	return nil
}

// keepDecay gives schedules that end with the run the end they had when it began, however often run.steps
// was raised since: that prolongs a run and does not change the rates of the steps it has made.
func keepDecay(cfg, old *config.Config) {
	for i := range cfg.Agents {
		a := &cfg.Agents[i]
		before := old.Agent(a.Name)
		if before != nil && a.Optimizer.DecaySteps == cfg.Run.Steps {
			a.Optimizer.DecaySteps = before.Optimizer.DecaySteps
		}
	}
}

// replaceFile writes a file that other workers of the run may be reading or writing too.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
