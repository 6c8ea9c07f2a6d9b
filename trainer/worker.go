// Package trainer is the story of M-GRPO training, readable beside the paper's algorithm: step.go is one
// step; what happens before, between and after the steps is in this file.
package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

	dir     string // the run's folder
	run     checkpoint.Run
	saved   int64 // version of the newest checkpoint; -1: there is none yet
	ledger  ledger
	refused int           // steps in a row in which an update was refused
	decoded map[int]int64 // the engine's passes by size of the decode batch, up to the last record

	stop    <-chan struct{} // closed when this process is asked for a clean stop
	stopped bool            // Run ended because of it, here or elsewhere
}

// Run trains from the version of the weights at hand to the last step, or to the version at which the run
// is asked to stop; a checkpoint of it is there when Run returns.
func (w *Worker) Run(ctx context.Context, from int64) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	go w.passStopOn(ctx)
	if w.saved < 0 {
		if err := w.coldStart(ctx); err != nil {
			return err
		}
	}
	if err := w.engine.Refresh(from); err != nil {
		return err
	}
	if err := w.member.Meet(ctx, w.waitsFor); err != nil {
		return err
	}
	err := w.train(ctx, from)
	if w.stopped = errors.Is(err, errStopping); err == nil || w.stopped {
		return w.checkpoint(ctx, w.engine.Version())
	}
	return err
}

// waitsFor shows whose cold start, or start, takes longer than this agent's.
func (w *Worker) waitsFor(agents []string) {
	w.observer.Progress(w.name, "waits for "+strings.Join(agents, ", "), 0, 0)
}

// train lives through evaluations, steps and checkpoints until the last one, or until errStopping.
func (w *Worker) train(ctx context.Context, from int64) error {
	for n := from; ; n++ {
		if n > from && w.checkpointsAt(n) {
			if err := w.checkpoint(ctx, n); err != nil {
				return err
			}
		}
		if w.evaluatesAt(n) {
			if err := w.evaluate(ctx, n); err != nil {
				return err
			}
			best := w.ledger.Best != nil && w.ledger.Best.Version == n && (n > 0 || w.teaches())
			if best || n == w.saved { // its ledger says how good it is
				if err := w.checkpoint(ctx, n); err != nil {
					return err
				}
			}
		}
		if n == w.cfg.Run.Steps {
			return nil
		}
		if err := w.step(ctx, n); err != nil {
			return err
		}
	}
}

// checkpointsAt says whether version n is kept whatever its evaluation says, and before that: what was
// trained is not to be lost in it.
func (w *Worker) checkpointsAt(n int64) bool {
	every := w.cfg.Run.CheckpointEvery
	return n == w.cfg.Run.Steps || every > 0 && n%every == 0
}

// evaluatesAt says whether version n is evaluated before step n. The last version always is; nothing is
// where the task holds no queries out, or twice.
func (w *Worker) evaluatesAt(n int64) bool {
	switch {
	case w.task.EvalSize() == 0 || w.ledger.evaluated(n):
		return false
	case n == w.cfg.Run.Steps:
		return true
	case n == 0:
		return w.cfg.Eval.Before
	}
	return w.cfg.Eval.Every > 0 && n%w.cfg.Eval.Every == 0
}

// teaches says whether any agent has a cold start, after which version 0 is worth a checkpoint.
func (w *Worker) teaches() bool {
	return slices.ContainsFunc(w.cfg.Agents, func(a config.Agent) bool { return coldStarts(w.cfg, &a) })
}

// errStopping is what a phase without queries means: the run ends at the version it was to begin from. The
// main agent's worker begins one when somebody has asked for a stop, so that all workers end alike.
var errStopping = errors.New("the run was asked to stop")

// passStopOn asks the main agent, wherever it works, to stop when this process is asked to.
func (w *Worker) passStopOn(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-w.stop:
		if err := w.member.AskStop(ctx); err != nil && ctx.Err() == nil {
			w.observer.Note(w.name, fmt.Sprintf("warning: the others cannot be asked to stop: %v", err))
		}
	}
}

// stopAsked says whether a phase is to begin no more.
func (w *Worker) stopAsked(ctx context.Context) (bool, error) {
	select {
	case <-w.stop:
		return true, nil
	default:
	}
	by, err := w.member.StopAsked(ctx)
	return by != "", err
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
	w.ledger.note(version, outcomes)
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
