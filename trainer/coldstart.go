package trainer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/course"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// coldStart trains the agent on demonstrations before the first step, with the packing, the mask and the optimizer of
// the training. Agents do it independently of each other. If it is asked to stop, it writes its state to disk and
// returns errStopping; the next start continues from there.
func (w *worker) coldStart(ctx context.Context) error {
	set := w.agent.ColdStart
	if !w.cfg.ColdStarts(w.agent) {
		return nil
	}
	c, err := w.archive.RestoreColdStart(ctx)
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	if c.Updates > 0 {
		w.observer.Note(metrics.Infof(w.name, metrics.TopicStart, "the cold start continues after update %d of %d", c.Updates, set.Steps))
	}
	if !c.Over {
		if err := w.teach(ctx, &c); err != nil {
			return w.leaveColdStart(ctx, c, err)
		}
	}
	if w.cfg.KLToColdStart(w.agent) {
		if err := w.archive.KeepReference(ctx); err != nil {
			return err
		}
		if err := w.takeReference(ctx); err != nil {
			return err
		}
	}
	if err := w.Policy.UpdateWeights(ctx, w.from); err != nil { // servers have the weights from before
		return err
	}
	w.Learner.SetAdam(assemble.Adam(w.agent.Optimizer))
	if !w.cfg.Learns(w.agent) {
		return w.Freeze(ctx)
	}
	return w.Learner.ResetOptimizer(ctx)
}

// teach makes the remaining updates and counts them in c.
func (w *worker) teach(ctx context.Context, c *archive.ColdStart) error {
	set := w.agent.ColdStart
	demos, err := w.demonstrations()
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	schedule := assemble.Schedule(set.Optimizer, set.Steps)
	order := newDealer(len(demos), w.cfg.Run.Seed, w.name)
	order.skip(c.Updates * int64(set.Batch))
	w.Learner.SetAdam(assemble.Adam(set.Optimizer))
	counted := min(set.Steps, 20) // number of last updates over which the loss is averaged
	watch := stopWatch{w: w}
	updating, done := unlessAsked(ctx)
	defer done()
	for i := c.Updates; i < set.Steps; i++ {
		if err := watch.look(ctx); err != nil {
			return err
		}
		clock := w.stopwatch()
		batch := make([]*learner.Sequence, 0, set.Batch)
		for range set.Batch {
			batch = append(batch, demos[order.next()])
		}
		r, err := w.Learner.Supervise(updating, batch, schedule.At(i))
		if err != nil {
			return fmt.Errorf("cold start, update %d: %w", i+1, err)
		}
		c.Updates++
		c.Tokens += r.Values["tokens"]
		if i >= set.Steps-counted {
			c.Loss += r.Values["loss"]
		}
		clock.lap("learn")
		c.Seconds += clock.laps["learn"]
		w.observer.Progress(metrics.Progress{Agent: w.name, Activity: metrics.ColdStart, Done: int(i + 1), Total: int(set.Steps)})
	}
	return w.report(ctx, metrics.Record{Kind: metrics.KindColdStart, Agent: w.name, Values: map[string]float64{
		"loss": c.Loss / float64(counted), "updates": float64(set.Steps), "trained_tokens": c.Tokens,
		"learn_seconds": c.Seconds, "learn_tokens_per_second": c.Tokens / c.Seconds,
	}})
}

// leaveColdStart writes the state of a cold start to disk if err is a request to stop and not a failure. It returns
// err.
func (w *worker) leaveColdStart(ctx context.Context, c archive.ColdStart, err error) error {
	stopping := errors.Is(err, errStopping)
	if stopping { // workers with a complete cold start learn why this worker leaves
		defer w.askStop(ctx)
	}
	if c.Updates == 0 || !stopping && !Resumable(err) {
		return err
	}
	folder, failed := w.archive.SaveColdStart(context.WithoutCancel(ctx), c)
	if failed != nil {
		return failed
	}
	w.observer.Note(metrics.Infof(w.name, metrics.TopicStop, "the cold start was stopped after update %d of %d; --resume continues there: %s", c.Updates, w.agent.ColdStart.Steps, folder))
	return err
}

// askStop asks the other workers to stop. It does not wait for a store that cannot be reached, which passStopOn
// reports.
func (w *worker) askStop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = w.member.AskStop(ctx)
}

// takeReference loads the weights for the KL term from the run's folder.
func (w *worker) takeReference(ctx context.Context) error {
	folder, err := w.archive.Reference()
	if err != nil {
		return err
	}
	return w.ReferTo(ctx, w.cfg, w.agent, folder)
}

// meetReady waits until all agents are ready, also when a stop was asked for. If an agent has stopped in its cold
// start, and therefore has no worker, this agent stops, too, and keeps its own cold start.
func (w *worker) meetReady(ctx context.Context) error {
	if w.archive.Saved() != course.None {
		return w.member.Meet(ctx, store.Ready, w.waitsFor)
	}
	waiting, leave := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { w.watchOthers(waiting, leave) })
	err := w.member.Meet(waiting, store.Ready, w.waitsFor)
	if err != nil && waiting.Err() != nil {
		err = context.Cause(waiting)
	}
	leave(nil)
	watching.Wait()
	if err == nil || !w.cfg.ColdStarts(w.agent) {
		return err
	}
	return w.leaveColdStart(ctx, archive.ColdStart{Updates: w.agent.ColdStart.Steps, Over: true}, err)
}

// watchOthers calls leave when a stop was asked for and an agent has no worker. It returns when ctx ends.
func (w *worker) watchOthers(ctx context.Context, leave context.CancelCauseFunc) {
	watch := stopWatch{w: w}
	for ctx.Err() == nil {
		if errors.Is(watch.look(ctx), errStopping) {
			if missing, err := w.member.Missing(ctx); err == nil && len(missing) > 0 {
				leave(errStopping)
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(stopInterval):
		}
	}
}

// stopInterval is the longest time until a stop that was asked for at another server is noticed.
const stopInterval = time.Second

// stopWatch checks for a stop between updates: this process's own at each check, those of others at intervals.
type stopWatch struct {
	w      *worker
	looked time.Time // the time of the last request to the store
}

// look returns errStopping if a stop was asked for, and the cause if ctx has ended.
func (s *stopWatch) look(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-s.w.stop:
		return errStopping
	default:
	}
	if time.Since(s.looked) < stopInterval {
		return nil
	}
	asked, err := s.w.stopAsked(ctx)
	s.looked = time.Now()
	if err == nil && asked {
		err = errStopping
	}
	return err
}

// unlessAsked returns a context for an update that ends with ctx, except when ctx ends because of a requested stop: the
// update is then completed, so that its weights can be saved.
func unlessAsked(ctx context.Context) (updating context.Context, done func()) {
	updating, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !Resumable(cause) {
			cancel(cause)
		}
	})
	return updating, func() { stop(); cancel(nil) }
}

// demonstrations returns the conversations to train on.
func (w *worker) demonstrations() ([]*learner.Sequence, error) {
	shown, err := assemble.Demonstrations(w.cfg, w.Player, w.context())
	out := make([]*learner.Sequence, len(shown))
	for i, t := range shown {
		out[i] = &learner.Sequence{ID: t.ID, Tokens: t.Tokens, Sampled: t.Sampled}
	}
	return out, err
}

// dealer draws indices without replacement and reshuffles them for every pass, as a function of the seed.
type dealer struct {
	rng  *rand.Rand
	perm []int
	at   int
}

func newDealer(n int, seed uint64, name string) *dealer {
	d := &dealer{rng: rand.New(rand.NewPCG(seed, task.Hash(name))), perm: make([]int, n), at: n}
	for i := range d.perm {
		d.perm[i] = i
	}
	return d
}

func (d *dealer) next() int {
	if d.at == len(d.perm) {
		d.rng.Shuffle(len(d.perm), func(i, j int) { d.perm[i], d.perm[j] = d.perm[j], d.perm[i] })
		d.at = 0
	}
	d.at++
	return d.perm[d.at-1]
}

// skip discards the next n indices.
func (d *dealer) skip(n int64) {
	for range n {
		d.next()
	}
}
