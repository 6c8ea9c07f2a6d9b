package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// bench runs arms and keeps their results.
type bench struct {
	root    string // the repository
	work    string // checkpoints and trajectories of the runs
	path    string // file of the results
	log     io.Writer
	tokens  float64
	every   int64
	samples int
	final   int
	set     []string
	results *Results
}

// all runs every arm with seeds 0 to seeds-1, except those runs that the results already hold.
func (b *bench) all(ctx context.Context, arms []arm, seeds int) error {
	for seed := range seeds {
		for _, a := range arms {
			if b.results.run(a.name, seed) != nil {
				continue
			}
			if err := b.one(ctx, a, seed); err != nil {
				return fmt.Errorf("arm %s, seed %d: %w", a.name, seed, err)
			}
			if err := b.results.save(b.path); err != nil {
				return err
			}
		}
	}
	return nil
}

// one trains an arm with a seed, from its cold start to the token budget, and evaluates it on the held-out queries.
func (b *bench) one(ctx context.Context, a arm, seed int) error {
	from, err := b.coldStart(ctx, a.start, seed)
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	cfg, err := b.armConfig(a, seed, from)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(cfg.RunDir()); err != nil { // of a run that was cut off
		return err
	}
	began := time.Now()
	watch := newBudget(fmt.Sprintf("seed %d %s", seed, a.name), b.tokens, b.log)
	if err := b.train(ctx, cfg, watch, watch.stop); !errors.Is(err, trainer.ErrStopped) {
		return errors.Join(errors.New("the run ended without having spent its tokens"), err)
	}
	seconds := time.Since(began).Seconds()
	final, err := evaluate(ctx, cfg, "", b.final, watch)
	if err != nil {
		return err
	}
	b.results.Runs = append(b.results.Runs, Run{
		Arm: a.name, Seed: seed, Steps: watch.steps, Tokens: watch.tokens, Seconds: seconds, Final: final,
		Curve: watch.curve(b.results.start(a.start, seed).Outcome.Accuracy, final.Accuracy),
	})
	fmt.Fprintf(b.log, "%s ended after step %d, %.0f tokens, %.0f s: held-out accuracy %.3f\n", watch.label, watch.steps, watch.tokens, seconds, final.Accuracy)
	return nil
}

// coldStart trains, once, the checkpoint with which the arms of a seed begin, and evaluates it on the held-out queries.
func (b *bench) coldStart(ctx context.Context, start string, seed int) (stepDir string, err error) {
	cfg, err := b.coldStartConfig(start, seed)
	if err != nil {
		return "", err
	}
	watch := newBudget(fmt.Sprintf("seed %d cold start of %s", seed, start), b.tokens, b.log)
	checkpoints := archive.Checkpoints{Dir: filepath.Join(cfg.RunDir(), "checkpoints")}
	stepDir = checkpoints.StepDir(0)
	if done, err := checkpoints.List(); err != nil {
		return "", err
	} else if len(done) == 0 {
		if err := b.train(ctx, cfg, watch, nil); err != nil {
			return "", err
		}
	}
	if b.results.start(start, seed) != nil {
		return stepDir, nil
	}
	whole, err := b.configuration(start, seed, "cold-"+start)
	if err != nil {
		return "", err
	}
	outcome, err := evaluate(ctx, whole, stepDir, b.final, watch)
	if err != nil {
		return "", err
	}
	b.results.Starts = append(b.results.Starts, Start{start, seed, outcome})
	return stepDir, b.results.save(b.path)
}

func (b *bench) train(ctx context.Context, cfg *config.Config, watch *budget, stop <-chan struct{}) error {
	lines := metrics.NewJSONL(cfg.RunDir())
	err := trainer.Train(ctx, cfg, trainer.Options{Observer: metrics.Observers{watch, lines}, Stop: stop})
	return errors.Join(err, lines.Close())
}
