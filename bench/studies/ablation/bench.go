package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// bench runs arms and stores their results.
type bench struct {
	root     string // the repository
	work     string // checkpoints and trajectories of the runs; absolute
	log      io.Writer
	parallel int // runs at a time
	tokens   float64
	every    int64
	samples  int
	final    int
	set      []string

	mu      sync.Mutex // guards results and their file
	results *Results
}

// unfinished returns the file of the results until all runs are finished.
func (b *bench) unfinished() string { return filepath.Join(b.work, "results.json") }

// all runs every arm with seeds 0 to seeds-1, except runs with results. It goes seed by seed, so that an early end leaves whole seeds.
// b.parallel runs are played at a time.
func (b *bench) all(ctx context.Context, arms []arm, seeds int) error {
	for seed := range seeds {
		missing := slices.DeleteFunc(slices.Clone(arms), func(a arm) bool { return b.finished(a.name, seed) })
		var starts []string
		for _, a := range missing {
			if !slices.Contains(starts, a.start) {
				starts = append(starts, a.start)
			}
		}
		if err := b.each(ctx, len(starts), func(ctx context.Context, i int) error {
			if err := b.coldStart(ctx, starts[i], seed); err != nil {
				return fmt.Errorf("cold start of %s, seed %d: %w", starts[i], seed, err)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := b.each(ctx, len(missing), func(ctx context.Context, i int) error {
			if err := b.one(ctx, missing[i], seed); err != nil {
				return fmt.Errorf("arm %s, seed %d: %w", missing[i].name, seed, err)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// each calls work with 0 to n-1 in this order, b.parallel at a time. The first error ends all calls.
func (b *bench) each(ctx context.Context, n int, work func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(b.parallel)
	for i := range n {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return work(ctx, i)
		})
	}
	return group.Wait()
}

func (b *bench) finished(arm string, seed int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.results.run(arm, seed) != nil
}

// startOf returns the evaluation of a cold start, or nil if it has not been made.
func (b *bench) startOf(start string, seed int) *Start {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.results.start(start, seed); s != nil {
		copied := *s
		return &copied
	}
	return nil
}

// keep adds a start or a run to the results and rewrites their file.
func (b *bench) keep(add func(r *Results)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	add(b.results)
	b.results.sort()
	return measure.WriteFile(b.unfinished(), b.results)
}

// one trains an arm with a seed, from its cold start to the token budget, and evaluates it on the held-out queries.
func (b *bench) one(ctx context.Context, a arm, seed int) error {
	cfg, err := b.armConfig(a, seed, b.startDir(a.start, seed))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(cfg.RunDir()); err != nil { // of an interrupted run
		return err
	}
	began := time.Now()
	watch := newBudget(fmt.Sprintf("seed %d %s", seed, a.name), b.tokens, cfg.GRPO.MaxLag, cfg.Eval.Every, b.log)
	fmt.Fprintf(b.log, "%s begins\n", watch.label)
	if err := b.train(ctx, cfg, watch, watch.stop); !errors.Is(err, trainer.ErrStopped) {
		return errors.Join(errors.New("the run ended without having spent its tokens"), err)
	}
	seconds := time.Since(began).Seconds()
	final, err := evaluate(ctx, cfg, "", b.final, watch)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.log, "%s ended after step %d, %.0f tokens, %.0f s: held-out accuracy %.3f\n", watch.label, watch.steps, watch.tokens, seconds, final.Accuracy)
	run := Run{
		Arm: a.name, Seed: seed, Steps: watch.steps, Tokens: watch.tokens, Seconds: seconds, Age: watch.age(), Final: final,
		Curve: watch.curve(b.startOf(a.start, seed).Outcome.Accuracy, final.Accuracy),
	}
	return b.keep(func(r *Results) { r.Runs = append(r.Runs, run) })
}

// startDir returns the folder of a cold start's checkpoint.
func (b *bench) startDir(start string, seed int) string {
	return archive.Checkpoints{Dir: filepath.Join(b.dir(seed, "cold-"+start), "checkpoints")}.StepDir(0)
}

// coldStart trains the checkpoint for the arms of a seed once, and evaluates it on the held-out queries.
func (b *bench) coldStart(ctx context.Context, start string, seed int) error {
	cfg, err := b.configuration(start, seed, "cold-"+start, "run.steps=0", "eval.queries=1", "eval.samples=1")
	if err != nil {
		return err
	}
	watch := newBudget(fmt.Sprintf("seed %d cold start of %s", seed, start), b.tokens, 0, 0, b.log)
	checkpoints := archive.Checkpoints{Dir: filepath.Join(cfg.RunDir(), "checkpoints")}
	if done, err := checkpoints.List(); err != nil {
		return err
	} else if len(done) == 0 {
		if err := b.train(ctx, cfg, watch, nil); err != nil {
			return err
		}
	}
	if b.startOf(start, seed) != nil {
		return nil
	}
	whole, err := b.configuration(start, seed, "cold-"+start)
	if err != nil {
		return err
	}
	outcome, err := evaluate(ctx, whole, b.startDir(start, seed), b.final, watch)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.log, "%s: held-out accuracy %.3f\n", watch.label, outcome.Accuracy)
	return b.keep(func(r *Results) { r.Starts = append(r.Starts, Start{start, seed, outcome}) })
}

func (b *bench) train(ctx context.Context, cfg *config.Config, watch *budget, stop <-chan struct{}) error {
	lines := metrics.NewJSONL(cfg.RunDir())
	err := trainer.Train(ctx, cfg, trainer.TrainOptions{Observer: metrics.Observers{watch, lines}, Stop: stop})
	return errors.Join(err, lines.Close())
}
