// Package trainer trains teams of agents with M-GRPO. Read it beside the paper's algorithm: step.go is one step, and
// this file is what happens before, between and after the steps.
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

// worker is one agent of a run: its model on its device, its engine and learner, its place in the store. `mgrpo train`
// runs the workers of all agents in one process, `mgrpo worker` a single one.
type worker struct {
	*assemble.Parts
	cfg      *config.Config
	agent    *config.Agent
	name     string
	main     bool
	observer metrics.Observer
	member   *store.Member

	archive      *archive.Archive // the files of the run
	from         int64            // version at which the round begins
	refused      int              // number of latest steps in a row with a refused update
	removedSteps int              // number of latest steps in a row with too many removed rollouts
	sampled      policy.Stats     // the engine's statistics at the last record

	tally tally // of the steps made in this process

	stop    <-chan struct{} // closed when this process is asked for a clean stop
	stopped bool            // the run ended because of a stop, here or elsewhere
}

// run trains from the current version to the last step, or to the version at which the run is asked to stop. When it
// returns, there is a checkpoint of that version, here and on the other servers.
func (w *worker) run(ctx context.Context) error {
	ctx, abandon := context.WithCancelCause(ctx)
	defer w.archive.Drain()
	defer abandon(nil)
	err := w.live(ctx, abandon)
	switch {
	case errors.Is(context.Cause(ctx), ErrStopped):
		return ErrStopped // context.Canceled carries no reason
	case err != nil && ctx.Err() == nil: // an error of this worker: the checkpoint that is being written need not be lost
		const patience = time.Minute
		saved, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_ = w.archive.Settle(saved)
	}
	return err
}

// live executes the decisions of the course until the run is over.
func (w *worker) live(ctx context.Context, abandon context.CancelCauseFunc) error {
	acting, done := context.WithCancel(ctx)
	actor := actor{w: w, done: make(chan rolledOut, 1)}
	defer actor.work.Wait()
	defer done() // before the wait, on every return
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

// carryOut executes one command; held are the rollouts for it.
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

// actor rolls out one step at a time, concurrently with the worker's other work.
type actor struct {
	w    *worker
	busy bool // from rollOut to take
	work sync.WaitGroup
	done chan rolledOut // buffered, so that a result can wait to be taken
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

// course returns the settings of the configuration and the task on which the schedule depends.
func (w *worker) course() course.Settings {
	return course.Settings{
		Steps: w.cfg.Run.Steps, CheckpointEvery: w.cfg.Run.CheckpointEvery, EvalEvery: w.cfg.Eval.Every,
		EvalFirst: w.cfg.Eval.Before, HeldOut: w.Player.Task.EvalSize() > 0, MaxLag: w.cfg.GRPO.MaxLag,
		ColdStarts: slices.ContainsFunc(w.cfg.Agents, func(a config.Agent) bool { return w.cfg.ColdStarts(&a) }),
	}
}

// beginning returns the state of the checkpoint from which the worker continues, if there is one.
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

// waitsFor publishes which agents take longer than this one.
func (w *worker) waitsFor(agents []string) {
	w.observer.Progress(metrics.Progress{Agent: w.name, Activity: metrics.Waiting, For: agents})
}

// errStopping means that a phase has no queries: the run ends at the version from which the phase would have begun. The
// main agent's worker begins such a phase when a stop was asked for, so that all workers end at the same version.
var errStopping = errors.New("the run was asked to stop")

// passStopOn forwards a stop that this process is asked for to the main agent, wherever it runs. If an agent has had no
// worker for so long that none may come, the current step would not end, so it is abandoned.
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
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicStop, "no worker of %s is alive: the current step is abandoned", strings.Join(missing, ", ")))
			abandon(ErrStopped)
			return
		}
		before = len(missing)
	}
}

// stopAsked reports whether a stop was requested.
func (w *worker) stopAsked(ctx context.Context) (bool, error) {
	select {
	case <-w.stop:
		return true, nil
	default:
	}
	by, err := w.member.StopAsked(ctx)
	return by != "", err
}

// trains reports whether this agent's weights change.
func (w *worker) trains() bool { return w.Learner != nil }

func (w *worker) mainName() string { return w.cfg.Main().Name }

// stopwatch measures the parts of a step for the report; no result depends on it.
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
