package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/checkpoint"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// Options of a run beside its configuration.
type Options struct {
	Agents   []string // agents to run in this process; nil means all
	Resume   bool     // go on from the newest complete checkpoint
	Observer metrics.Observer
}

// Train runs agents of a team until the configured last step. With every agent in one process and no
// store.url the store is embedded; else it is the Redis that the agents share.
func Train(ctx context.Context, cfg *config.Config, opt Options) error {
	dir := RunDir(cfg)
	from, err := startingPoint(cfg, dir, opt)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), cfg.Dump(), 0o644); err != nil {
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
	return errors.Join(err, team.close(context.WithoutCancel(ctx)))
}

// Evaluate holds out once with the given checkpoint and returns the records of all agents.
func Evaluate(ctx context.Context, cfg *config.Config, from checkpoint.Manifest, dir string, opt Options) error {
	team, err := openTeam(ctx, cfg, opt, Setup{Dir: dir, From: &from, Frozen: true})
	if err != nil {
		return err
	}
	err = team.each(ctx, func(ctx context.Context, w *Worker) error {
		if err := w.engine.Refresh(from.Step); err != nil {
			return err
		}
		return w.evaluate(ctx, from.Step)
	})
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
		names = agentNames(cfg)
	}
	t, err := OpenTask(cfg)
	if err != nil {
		return nil, err
	}
	options, err := storeOptions(cfg)
	if err != nil {
		return nil, err
	}
	if options.URL == "" && len(names) < len(agentNames(cfg)) {
		return nil, fmt.Errorf("store.url is not set: agents in processes of their own need a Redis to meet in")
	}
	out := &team{}
	if out.store, err = store.Open(ctx, options); err != nil {
		return nil, err
	}
	s.Config, s.Task, s.Store, s.Observer, s.Local = cfg, t, out.store, opt.Observer, len(names)
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
func (t *team) each(ctx context.Context, f func(context.Context, *Worker) error) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, w := range t.workers {
		g.Go(func() error {
			err := f(gctx, w)
			if err == nil {
				return w.member.Leave(ctx)
			}
			err = fmt.Errorf("agent %s: %w", w.name, err)
			if gctx.Err() == nil || ctx.Err() != nil { // the first to fail says why
				_ = w.member.Fail(context.WithoutCancel(ctx), err.Error())
			}
			return err
		})
	}
	return g.Wait()
}

func (t *team) close(ctx context.Context) error {
	var errs []error
	for _, w := range t.workers {
		errs = append(errs, w.Close(ctx))
	}
	return errors.Join(append(errs, t.store.Close())...)
}

// RunDir is the run's folder: run.dir, or runs/NAME where the program was started.
func RunDir(cfg *config.Config) string {
	if cfg.Run.Dir != "" {
		return cfg.Resolve(cfg.Run.Dir)
	}
	return filepath.Join("runs", cfg.Run.Name)
}

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
	if err := unchanged(cfg, filepath.Join(dir, "config.yaml")); err != nil {
		return nil, err
	}
	if m.Step >= cfg.Run.Steps {
		return nil, fmt.Errorf("--resume: the newest checkpoint is of step %d and run.steps is %d: nothing is left to train; raise run.steps", m.Step, cfg.Run.Steps)
	}
	opt.Observer.Note("", fmt.Sprintf("resuming from %s, step %d of %d", run.StepDir(m.Step), m.Step, cfg.Run.Steps))
	return &m, nil
}

func unchanged(cfg *config.Config, path string) error {
	old, err := config.Load(path, nil)
	if err != nil {
		return fmt.Errorf("--resume: the configuration the run began with: %w", err)
	}
	if keys := cfg.DiffForResume(old); len(keys) > 0 {
		return fmt.Errorf("--resume: these keys differ from the run's own and may not: %v", keys)
	}
	return nil
}
