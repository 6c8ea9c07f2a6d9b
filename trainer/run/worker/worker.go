// Package worker contains one agent's part in a run. Read it together with the paper's algorithm: step.go contains one
// step, and this file contains the loop that executes the commands of package schedule.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/schedule"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Worker is one agent of a run. `mgrpo train` runs the workers of all agents in one process, `mgrpo worker` runs a single
// one. Each part of its work has a separate type, which embeds common and holds the further objects it needs.
type Worker struct {
	*common
	parts    *assemble.AgentParts // the agent's model with its sampler and learner
	archive  *archive.Archive     // the files of the run
	from     int64                // version at which the round begins
	rollouts *rollouts            // conversations
	steps    *steps               // updates from them
	reports  *reports             // records of both
	stops    *stops               // requests to end the run early
}

// Run trains from the current version to the last step, or to the version at which the run is asked to stop. When it
// returns nil, there is a checkpoint of that version, here and on the other servers.
func (w *Worker) Run(ctx context.Context) error {
	ctx, abandon := context.WithCancelCause(ctx)
	defer w.archive.Saving.Drain()
	defer abandon(nil)
	err := w.loop(ctx, abandon)
	switch {
	case errors.Is(context.Cause(ctx), ErrStopped):
		return ErrStopped // context.Canceled does not contain a reason
	case err != nil && ctx.Err() == nil: // an error of this worker: the checkpoint that is being written can still be completed
		const saveTimeout = time.Minute
		saved, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		_ = w.archive.Saving.Wait(saved)
	}
	return err
}

// loop executes the decisions of the schedule until the run is over.
func (w *Worker) loop(ctx context.Context, abandon context.CancelCauseFunc) error {
	acting, cancel := context.WithCancel(ctx)
	background := rolloutRunner{w: w, done: make(chan rolloutResult, 1)}
	defer background.work.Wait()
	defer cancel() // before the wait, on every return
	background.work.Go(func() { w.stops.passOn(acting, abandon) })
	if err := w.parts.Policy.UpdateWeights(ctx, w.from); err != nil {
		return err
	}
	if err := w.archive.Confirm(ctx); err != nil {
		return err
	}
	settings, state := scheduleOptions(w.cfg, w.parts.Player.Task), scheduleState(w.archive)
	ready := map[int64]*experience{} // rollouts that are not trained on yet, by step
	for {
		if n, ok := settings.RollOut(state); ok && !background.busy {
			background.rollOut(acting, n)
		}
		var err error
		switch next := settings.Next(state); {
		case next.Kind == schedule.End:
			w.stops.ended = state.Stopping
			return nil
		case settings.TakesRollouts(next, background.busy, len(background.done) > 0):
			r := background.take()
			if r.err != nil && !errors.Is(r.err, errStopping) {
				return r.err
			}
			ready[r.step] = r.exp
			state, err = settings.RolledOut(state, r.step, schedule.Result{Stop: r.err != nil})
		default:
			var result schedule.Result
			if result, err = w.execute(ctx, next, ready[next.Version]); err == nil {
				state, err = settings.Done(state, next, result)
			}
			if next.Kind == schedule.Train {
				delete(ready, next.Version)
			}
		}
		if err != nil {
			return err
		}
	}
}

// execute executes one command. exp holds the rollouts for it.
func (w *Worker) execute(ctx context.Context, c schedule.Command, exp *experience) (r schedule.Result, err error) {
	switch c.Kind {
	case schedule.ColdStart:
		err = w.coldStart().run(ctx)
	case schedule.AwaitTeam:
		err = w.coldStart().awaitTeam(ctx)
	case schedule.Save:
		err = w.archive.Checkpoint(ctx, c.Version)
	case schedule.Evaluate:
		_, err = w.Evaluate(ctx, c.Version)
		r.Best = err == nil && w.archive.Evaluations().IsBest(c.Version)
	case schedule.Train:
		if err = w.archive.Saving.Failed(); err == nil {
			err = w.steps.step(ctx, c.Version, exp)
		}
	case schedule.Finish:
		if err = w.archive.Saving.Wait(ctx); err == nil {
			err = w.member.Round.Barrier(ctx, store.Finished, w.ReportWaiting)
		}
	}
	if errors.Is(err, errStopping) {
		return schedule.Result{Stop: true}, nil
	}
	return r, err
}

// rolloutRunner rolls out one step at a time, concurrently with the worker's other work.
type rolloutRunner struct {
	w    *Worker
	busy bool // rollOut was called, and take not yet
	work sync.WaitGroup
	done chan rolloutResult // buffered, so that a result can wait to be taken
}

// rolloutResult is the result of rolling out one step.
type rolloutResult struct {
	step int64
	exp  *experience
	err  error // errStopping: there was nothing to roll out
}

func (r *rolloutRunner) rollOut(ctx context.Context, step int64) {
	r.busy = true
	r.work.Go(func() {
		exp, err := r.w.rollouts.step(ctx, step)
		r.done <- rolloutResult{step, exp, err}
	})
}

func (r *rolloutRunner) take() rolloutResult {
	result := <-r.done
	r.busy = false
	return result
}

// scheduleOptions returns the settings of the configuration and the task on which the schedule depends.
func scheduleOptions(cfg *config.Config, t task.Task) schedule.Options {
	return schedule.Options{
		Steps: cfg.Run.Steps, CheckpointEvery: cfg.Run.CheckpointEvery, EvalEvery: cfg.Eval.Every,
		EvalFirst: cfg.Eval.Before, HasHeldOut: t.EvalSize() > 0, MaxLag: cfg.GRPO.MaxLag, ExactLag: cfg.GRPO.ExactLag,
		ColdStarts: slices.ContainsFunc(cfg.Agents, func(a config.Agent) bool { return cfg.ColdStarts(&a) }),
	}
}

// scheduleState returns the state of the checkpoint from which the worker continues, if there is one.
func scheduleState(a *archive.Archive) schedule.State {
	evaluated, best := int64(schedule.None), int64(schedule.None)
	e := a.Evaluations()
	if e.Evaluated != nil {
		evaluated = *e.Evaluated
	}
	if e.Best != nil {
		best = e.Best.Version
	}
	return schedule.Begin(a.Saved(), evaluated, best)
}

// Name returns the agent's name.
func (w *Worker) Name() string { return w.name }

// Main reports whether the agent is the main agent.
func (w *Worker) Main() bool { return w.main }

// Member returns the agent's place in the run.
func (w *Worker) Member() *store.Member { return w.member }

// SetPlayer makes a program play the rollouts instead of the main agent's own conversations.
func (w *Worker) SetPlayer(p gateway.Player) { w.rollouts.programs.player = p }

// Stopped reports whether the run ended because of a stop, here or elsewhere.
func (w *Worker) Stopped() bool { return w.stops.ended }

// Close frees the worker's memory.
func (w *Worker) Close(ctx context.Context) error {
	var errs []error
	if w.parts != nil {
		errs = append(errs, w.parts.Close(ctx))
	}
	if w.archive != nil {
		errs = append(errs, w.archive.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: closing: %w", w.name, err)
	}
	return nil
}

// Parts returns the agent's model, its sampler and learner, and its part of the gateway, which is nil if the model is hosted or
// Options.Gateway is false.
func (w *Worker) Parts() *assemble.AgentParts { return w.parts }

// Probe returns access to the worker for the health server and the live page.
func (w *Worker) Probe() Probe { return Probe{w.parts} }

// Probe gives the health server and the live page access to a worker.
type Probe struct{ parts *assemble.AgentParts }

// Alive waits until the device's thread has executed an empty job, or until ctx ends. A hosted model has no device that
// could hang.
func (p Probe) Alive(ctx context.Context) error {
	if p.parts.Device == nil {
		return nil
	}
	return p.parts.Device.Do(ctx, func(*torch.Scope) error { return nil })
}

// Version returns the number of training steps of the weights.
func (p Probe) Version() int64 { return p.parts.Policy.Version() }

// Rollouts returns the number of open conversations.
func (p Probe) Rollouts() int { return p.parts.Player.InFlight() }

// Question returns a query's text and its reference answer, or "" if the task does not have the id.
func (p Probe) Question(id string) (text, answer string) {
	q, err := p.parts.Player.Task.Lookup(id)
	if err != nil {
		return "", ""
	}
	return q.Text, q.Answer
}
