// Package trainer is the story of M-GRPO training, readable beside the paper's algorithm: step.go is one
// step; what happens before, between and after the steps is in this file.
package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/course"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/policy"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// worker is one agent of a run: its model on its device, its engine and learner, its place in the store.
// `mgrpo train` runs one worker an agent in one process, `mgrpo worker` a single one.
type worker struct {
	*assemble.Parts
	cfg      *config.Config
	agent    *config.Agent
	name     string
	main     bool
	observer metrics.Observer
	member   *store.Member

	archive      *archive.Archive // what the run leaves on disk
	from         int64            // version at which the round begins
	refused      int              // steps in a row in which an update was refused
	removedSteps int              // steps in a row of which too many rollouts were removed
	sampled      policy.Stats     // the engine's, at the last record

	tally tally // of the steps made here

	stop    <-chan struct{} // closed when this process is asked for a clean stop
	stopped bool            // Run ended because of it, here or elsewhere
}

// run takes the course of the run from the version of the weights at hand to the last step, or to the version
// at which the run is asked to stop; a checkpoint of it is there when Run returns, here and on the other servers.
func (w *worker) run(ctx context.Context) error {
	ctx, abandon := context.WithCancelCause(ctx)
	defer w.archive.Drain()
	defer abandon(nil)
	err := w.live(ctx, abandon)
	switch {
	case errors.Is(context.Cause(ctx), ErrStopped):
		return ErrStopped // what was interrupted does not know why
	case err != nil && ctx.Err() == nil: // an error of its own: the checkpoint on its way need not be lost over it
		const patience = time.Minute
		saved, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_ = w.archive.Settle(saved)
	}
	return err
}

// live does what comes next until the run is over.
func (w *worker) live(ctx context.Context, abandon context.CancelCauseFunc) error {
	acting, done := context.WithCancel(ctx)
	actor := actor{w: w, done: make(chan rolledOut, 1)}
	defer actor.work.Wait()
	defer done() // before the wait, whichever way this ends
	actor.work.Go(func() { w.passStopOn(acting, abandon) })
	if err := w.Policy.UpdateWeights(ctx, w.from); err != nil {
		return err
	}
	if err := w.archive.Confirm(ctx); err != nil {
		return err
	}
	settings, state := w.course(), w.beginning()
	held := map[int64]*experience{}
	for {
		if n, ok := settings.RollOut(state); ok && !actor.busy {
			actor.rollOut(acting, n)
		}
		var err error
		switch next := settings.Next(state); {
		case next.Kind == course.End:
			w.stopped = state.Stopping
			return nil
		case next.Kind == course.Await || len(actor.done) > 0, actor.busy && w.cfg.GRPO.ExactLag:
			r := actor.take()
			if r.err != nil && !errors.Is(r.err, errStopping) {
				return r.err
			}
			held[r.step] = r.held
			state, err = settings.Rolled(state, r.step, course.Result{Stop: r.err != nil})
		default:
			var result course.Result
			if result, err = w.carryOut(ctx, next, held[next.Version]); err == nil {
				state, err = settings.Done(state, next, result)
			}
			if next.Kind == course.Train {
				delete(held, next.Version)
			}
		}
		if err != nil {
			return err
		}
	}
}

// carryOut does what comes next; held is what was rolled out for it.
func (w *worker) carryOut(ctx context.Context, c course.Command, held *experience) (r course.Result, err error) {
	switch c.Kind {
	case course.Teach:
		err = w.coldStart(ctx)
	case course.Meet:
		err = w.meetReady(ctx)
	case course.Save:
		err = w.archive.Checkpoint(ctx, c.Version)
	case course.Evaluate:
		err = w.evaluate(ctx, c.Version)
		r.Best = err == nil && w.archive.Evaluations().IsBest(c.Version)
	case course.Train:
		if err = w.archive.Failed(); err == nil {
			err = w.step(ctx, c.Version, held)
		}
	case course.Finish:
		if err = w.archive.Settle(ctx); err == nil {
			err = w.member.Meet(ctx, store.Finished, w.waitsFor)
		}
	}
	if errors.Is(err, errStopping) {
		return course.Result{Stop: true}, nil
	}
	return r, err
}

// actor rolls out one step at a time beside whatever else the worker does.
type actor struct {
	w    *worker
	busy bool // from rollOut to take
	work sync.WaitGroup
	done chan rolledOut // of one element: nobody need be there to take it
}

type rolledOut struct {
	step int64
	held *experience
	err  error // errStopping: there was nothing to roll out
}

func (a *actor) rollOut(ctx context.Context, step int64) {
	a.busy = true
	a.work.Go(func() {
		held, err := a.w.rollOutStep(ctx, step)
		a.done <- rolledOut{step, held, err}
	})
}

func (a *actor) take() rolledOut {
	r := <-a.done
	a.busy = false
	return r
}

// course is what the run's course depends on, of the configuration and the task.
func (w *worker) course() course.Settings {
	return course.Settings{
		Steps: w.cfg.Run.Steps, CheckpointEvery: w.cfg.Run.CheckpointEvery, EvalEvery: w.cfg.Eval.Every,
		EvalFirst: w.cfg.Eval.Before, HeldOut: w.Player.Task.EvalSize() > 0, MaxLag: w.cfg.GRPO.MaxLag,
		ColdStarts: slices.ContainsFunc(w.cfg.Agents, func(a config.Agent) bool { return w.cfg.ColdStarts(&a) }),
	}
}

// beginning is the state of the checkpoint that the worker goes on from, if there is one.
func (w *worker) beginning() course.State {
	evaluated, best := int64(course.None), int64(course.None)
	e := w.archive.Evaluations()
	if e.Evaluated != nil {
		evaluated = *e.Evaluated
	}
	if e.Best != nil {
		best = e.Best.Version
	}
	return course.Begin(w.archive.Saved(), evaluated, best)
}

// waitsFor shows who takes longer than this agent.
func (w *worker) waitsFor(agents []string) {
	w.observer.Progress(metrics.Progress{Agent: w.name, Activity: metrics.Waiting, For: agents})
}

// errStopping is what a phase without queries means: the run ends at the version it was to begin from. The
// main agent's worker begins one when somebody has asked for a stop, so that all workers end alike.
var errStopping = errors.New("the run was asked to stop")

// passStopOn asks the main agent, wherever it works, to stop when this process is asked to. Where an agent has
// had no worker for so long that none may come, the step in flight would not end: it is abandoned.
func (w *worker) passStopOn(ctx context.Context, abandon context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
		return
	case <-w.stop:
	}
	if err := w.member.AskStop(ctx); err != nil && ctx.Err() == nil {
		w.observer.Note(metrics.Warnf(w.name, metrics.TopicStop, "the others cannot be asked to stop: %v", err))
	}
	look := time.NewTicker(w.cfg.Store.Lease)
	defer look.Stop()
	for before := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		missing, err := w.member.Missing(ctx)
		if err == nil && len(missing) > 0 && before > 0 {
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicStop, "no worker of %s is alive: the step in flight is abandoned", strings.Join(missing, ", ")))
			abandon(ErrStopped)
			return
		}
		before = len(missing)
	}
}

// stopAsked says whether a phase is to begin no more.
func (w *worker) stopAsked(ctx context.Context) (bool, error) {
	select {
	case <-w.stop:
		return true, nil
	default:
	}
	by, err := w.member.StopAsked(ctx)
	return by != "", err
}

// trains says whether this agent's weights change.
func (w *worker) trains() bool { return w.Learner != nil }

func (w *worker) mainName() string { return w.cfg.Main().Name }

// stopwatch measures the parts of a step for the report; nothing that is computed depends on it.
type stopwatch struct {
	last time.Time
	laps map[string]float64 // seconds
}

func (w *worker) stopwatch() *stopwatch {
	return &stopwatch{last: time.Now(), laps: map[string]float64{}}
}

// lap adds the time since the last lap, or since resume, to a part.
func (s *stopwatch) lap(name string) {
	now := time.Now()
	s.laps[name] += now.Sub(s.last).Seconds()
	s.last = now
}

// resume begins a lap: the time since the last one belongs to no part.
func (s *stopwatch) resume() { s.last = time.Now() }

// close frees the worker's memory.
func (w *worker) close(ctx context.Context) error {
	var errs []error
	if w.Parts != nil {
		errs = append(errs, w.Parts.Close(ctx))
	}
	if w.archive != nil {
		errs = append(errs, w.archive.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: closing: %w", w.name, err)
	}
	return nil
}
