// Package trainer is the story of M-GRPO training, readable beside the paper's algorithm: step.go is one
// step; what happens before, between and after the steps is in this file.
package trainer

import (
	"context"
	"fmt"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/checkpoint"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/rollout/local"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// Worker is one agent of a run: its model on its device, its engine and learner, its place in the store.
// `mgrpo train` runs one worker an agent in one process, `mgrpo worker` a single one.
type Worker struct {
	cfg      *config.Config
	agent    *config.Agent
	name     string
	main     bool
	observer metrics.Observer

	task      task.Task
	member    *store.Member
	device    *torch.Device
	model     *model.Model
	engine    *local.Engine
	learner   *learner.Learner // nil for a frozen agent
	tokenizer *tokenizer.Tokenizer
	dialect   func() (agent.Dialect, error) // a conversation's own
	tools     *toolbox
	limits    agent.Limits
	inFlight  int // conversations held at once

	weights    mgrpo.RewardWeights
	align      mgrpo.Align
	convention mgrpo.Convention
	schedule   learner.Schedule

	dir  string // the run's folder
	run  checkpoint.Run
	best struct { // the version with the highest held-out accuracy so far
		version  int64
		accuracy float64
	}
}

// Run trains from the version of the weights at hand to the last step.
func (w *Worker) Run(ctx context.Context, from int64) error {
	if from == 0 {
		if err := w.coldStart(ctx); err != nil {
			return err
		}
	}
	if err := w.engine.Refresh(from); err != nil {
		return err
	}
	for n := from; n < w.cfg.Run.Steps; n++ {
		if w.evaluatesAt(n) {
			if err := w.evaluate(ctx, n); err != nil {
				return err
			}
		}
		if err := w.step(ctx, n); err != nil {
			return err
		}
		if every := w.cfg.Run.CheckpointEvery; every > 0 && (n+1)%every == 0 && n+1 < w.cfg.Run.Steps {
			if err := w.checkpoint(ctx, n+1); err != nil {
				return err
			}
		}
	}
	if err := w.evaluate(ctx, w.cfg.Run.Steps); err != nil {
		return err
	}
	return w.checkpoint(ctx, w.cfg.Run.Steps)
}

// evaluatesAt says whether version n is evaluated before step n; the last version always is, by Run.
func (w *Worker) evaluatesAt(n int64) bool {
	if n == 0 {
		return w.cfg.Eval.Before
	}
	return w.cfg.Eval.Every > 0 && n%w.cfg.Eval.Every == 0
}

// evaluate holds out: the same rollouts, on held-out queries, with nothing learned from them.
func (w *Worker) evaluate(ctx context.Context, version int64) error {
	p := store.Eval(version)
	clock := w.stopwatch()
	held, err := w.rollOut(ctx, p)
	if err != nil {
		return err
	}
	outcomes, err := w.member.Outcomes(ctx, p, total(held.plan))
	if err != nil {
		return err
	}
	clock.lap("rollout")
	record := w.evalRecord(version, held, outcomes, clock)
	if accuracy, ok := record.Values["accuracy"]; ok && accuracy > w.best.accuracy {
		w.best.version, w.best.accuracy = version, accuracy
	}
	w.observer.Report(record)
	w.saveTrajectories(p, held, nil, nil)
	return nil
}

// trains says whether this agent's weights change.
func (w *Worker) trains() bool { return w.learner != nil }

func (w *Worker) mainName() string { return w.cfg.Main().Name }

// stopwatch measures the parts of a step for the report; nothing that is computed depends on it.
type stopwatch struct {
	last time.Time
	laps map[string]float64 // seconds
}

func (w *Worker) stopwatch() *stopwatch {
	return &stopwatch{last: time.Now(), laps: map[string]float64{}}
}

func (s *stopwatch) lap(name string) {
	now := time.Now()
	s.laps[name] += now.Sub(s.last).Seconds()
	s.last = now
}

// Close frees the worker's memory.
func (w *Worker) Close(ctx context.Context) error {
	var first error
	note := func(what string, err error) {
		if err != nil && first == nil {
			first = fmt.Errorf("%s: closing %s: %w", w.name, what, err)
		}
	}
	if w.tools != nil {
		note("tools", w.tools.Close())
	}
	if w.engine != nil {
		note("engine", w.engine.Close(ctx))
	}
	if w.learner != nil {
		note("learner", w.learner.Close(ctx))
	}
	if w.model != nil {
		note("model", w.model.Close(ctx))
	}
	if w.device != nil {
		note("device", w.device.Close())
	}
	return first
}
