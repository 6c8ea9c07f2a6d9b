package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/schedule"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// coldStart is the supervised training of an agent on demonstrations, and the wait until all agents are ready.
type coldStart struct {
	*common
	parts   *assemble.AgentParts
	archive *archive.Archive
	from    int64 // version at which the round begins
	stops   *stops
}

// run trains the agent on demonstrations before the first step, with the packing, the mask and the optimizer of the
// training. Agents do this independently of each other. If the agent is asked to stop, it writes its state to disk and
// returns errStopping; the next start continues from there.
func (cs *coldStart) run(ctx context.Context) error {
	set := cs.agent.ColdStart
	if !cs.cfg.ColdStarts(cs.agent) {
		return nil
	}
	c, err := cs.archive.RestoreColdStart(ctx)
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	if c.Updates > 0 {
		cs.observer.Note(metrics.Infof(cs.name, metrics.TopicStart, "the cold start continues after update %d of %d", c.Updates, set.Steps))
	}
	if !c.Over {
		if err := cs.train(ctx, &c); err != nil {
			return cs.saveIfResumable(ctx, c, err)
		}
	}
	if cs.cfg.KLToColdStart(cs.agent) {
		if err := cs.archive.KeepReference(ctx); err != nil {
			return err
		}
		if err := cs.takeReference(ctx); err != nil {
			return err
		}
	}
	if err := cs.parts.Policy.UpdateWeights(ctx, cs.from); err != nil { // the servers still have the earlier weights
		return err
	}
	cs.learner.SetAdam(assemble.Adam(cs.agent.Optimizer))
	if !cs.cfg.Learns(cs.agent) {
		return cs.parts.Freeze(ctx)
	}
	return cs.learner.ResetOptimizer(ctx)
}

// train makes the remaining updates and counts them in c.
func (cs *coldStart) train(ctx context.Context, c *archive.ColdStart) error {
	set := cs.agent.ColdStart
	demos, err := cs.demonstrations()
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	schedule := assemble.Schedule(set.Optimizer, set.Steps)
	order := newIndexSampler(len(demos), cs.cfg.Run.Seed, cs.name)
	for range c.Updates * int64(set.Batch) {
		order.next()
	}
	cs.learner.SetAdam(assemble.Adam(set.Optimizer))
	counted := min(set.Steps, 20) // number of last updates over which the loss is averaged
	poll := stopPoll{stops: cs.stops}
	updating, done := unlessResumable(ctx)
	defer done()
	for i := c.Updates; i < set.Steps; i++ {
		if err := poll.checkStop(ctx); err != nil {
			return err
		}
		clock := newStopwatch()
		batch := make([]*learner.Sequence, 0, set.Batch)
		for range set.Batch {
			batch = append(batch, demos[order.next()])
		}
		r, err := cs.learner.ColdStartUpdate(updating, batch, schedule.At(i))
		if err != nil {
			return fmt.Errorf("cold start, update %d: %w", i+1, err)
		}
		c.Updates++
		c.Tokens += r.Values[metrics.Tokens]
		if i >= set.Steps-counted {
			c.Loss += r.Values[metrics.Loss]
		}
		clock.lap("learn")
		c.Seconds += clock.laps["learn"]
		cs.observer.Progress(metrics.Progress{Agent: cs.name, Activity: metrics.ColdStart, Done: int(i + 1), Total: int(set.Steps)})
	}
	return cs.report(ctx, metrics.Record{Kind: metrics.KindColdStart, Agent: cs.name, Values: map[string]float64{
		metrics.Loss: c.Loss / float64(counted), metrics.Updates: float64(set.Steps), metrics.TrainedTokens: c.Tokens,
		metrics.LearnSeconds: c.Seconds, metrics.LearnTokensPerSecond: c.Tokens / c.Seconds,
	}})
}

// saveIfResumable writes the state of a cold start to disk if err is a request to stop, or another error after which the run
// can be resumed. It returns err, or the error of writing.
func (cs *coldStart) saveIfResumable(ctx context.Context, c archive.ColdStart, err error) error {
	stopping := errors.Is(err, errStopping)
	if stopping { // workers with a complete cold start must learn why this worker leaves
		defer cs.stops.ask(ctx)
	}
	if c.Updates == 0 || !stopping && !Resumable(err) {
		return err
	}
	folder, failed := cs.archive.SaveColdStart(context.WithoutCancel(ctx), c)
	if failed != nil {
		return failed
	}
	cs.observer.Note(metrics.Infof(cs.name, metrics.TopicStop,
		"the cold start was stopped after update %d of %d; --resume continues there: %s", c.Updates, cs.agent.ColdStart.Steps, folder))
	return err
}

// takeReference loads the weights for the KL term from the run's folder.
func (cs *coldStart) takeReference(ctx context.Context) error {
	folder, err := cs.archive.Reference()
	if err != nil {
		return err
	}
	return cs.parts.LoadReference(ctx, cs.cfg, cs.agent, folder)
}

// awaitTeam waits until all agents are ready, even if a stop was requested. If an agent has stopped in its cold start, and
// therefore has no worker, this agent stops, too, and keeps its own cold start.
func (cs *coldStart) awaitTeam(ctx context.Context) error {
	if cs.archive.Saved() != schedule.None {
		return cs.member.Round.Barrier(ctx, store.Ready, cs.ReportWaiting)
	}
	waiting, endWait := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { cs.watchOthers(waiting, endWait) })
	err := cs.member.Round.Barrier(waiting, store.Ready, cs.ReportWaiting)
	if err != nil && waiting.Err() != nil {
		err = context.Cause(waiting)
	}
	endWait(nil)
	watching.Wait()
	if err == nil || !cs.cfg.ColdStarts(cs.agent) {
		return err
	}
	return cs.saveIfResumable(ctx, archive.ColdStart{Updates: cs.agent.ColdStart.Steps, Over: true}, err)
}

// watchOthers calls endWait if a stop was requested and an agent has no worker. It returns when ctx ends.
func (cs *coldStart) watchOthers(ctx context.Context, endWait context.CancelCauseFunc) {
	poll := stopPoll{stops: cs.stops}
	for ctx.Err() == nil {
		if errors.Is(poll.checkStop(ctx), errStopping) {
			if missing, err := cs.member.Round.Missing(ctx); err == nil && len(missing) > 0 {
				endWait(errStopping)
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(stopInterval):
		}
	}
}

// demonstrations returns the conversations to train on.
func (cs *coldStart) demonstrations() ([]*learner.Sequence, error) {
	demonstrations, err := assemble.Demonstrations(cs.cfg, cs.parts.Player, cs.contextTokens)
	if err == nil && demonstrations.All() > len(demonstrations.Trajectories) {
		cs.observer.Note(metrics.Infof(cs.name, metrics.TopicTask, "cold start: %v", demonstrations))
	}
	out := make([]*learner.Sequence, len(demonstrations.Trajectories))
	for i, t := range demonstrations.Trajectories {
		out[i] = &learner.Sequence{ID: t.ID, Tokens: t.Tokens, Sampled: t.Sampled}
	}
	return out, err
}

// indexSampler draws indices without replacement and reshuffles them for every pass. The order depends on the seed, the agent's
// name and the number of indices only.
type indexSampler struct {
	rng  *rand.Rand
	perm []int
	at   int
}

func newIndexSampler(n int, seed uint64, name string) *indexSampler {
	d := &indexSampler{rng: rand.New(rand.NewPCG(seed, task.Hash(name))), perm: make([]int, n), at: n}
	for i := range d.perm {
		d.perm[i] = i
	}
	return d
}

func (d *indexSampler) next() int {
	if d.at == len(d.perm) {
		d.rng.Shuffle(len(d.perm), func(i, j int) { d.perm[i], d.perm[j] = d.perm[j], d.perm[i] })
		d.at = 0
	}
	d.at++
	return d.perm[d.at-1]
}
