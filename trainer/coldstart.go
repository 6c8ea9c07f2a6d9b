package trainer

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// coldStart teaches the agent from demonstrations before the first step: supervised, with the packing,
// the mask and the optimizer of the training. Agents do it side by side and need nothing of each other.
func (w *worker) coldStart(ctx context.Context) error {
	set := w.agent.ColdStart
	if !w.cfg.ColdStarts(w.agent) {
		return nil
	}
	demos, err := w.demonstrations()
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	schedule := assemble.Schedule(set.Optimizer, set.Steps)
	order := newDealer(len(demos), w.cfg.Run.Seed, w.name)
	w.Learner.SetAdam(assemble.Adam(set.Optimizer))
	clock := w.stopwatch()
	var loss, tokens mean
	for i := range set.Steps {
		batch := make([]*learner.Sequence, 0, set.Batch)
		for range set.Batch {
			batch = append(batch, demos[order.next()])
		}
		r, err := w.Learner.Supervise(ctx, batch, schedule.At(i))
		if err != nil {
			return fmt.Errorf("cold start, update %d: %w", i+1, err)
		}
		tokens.add(r.Values["tokens"])
		if i >= set.Steps-min(set.Steps, 20) {
			loss.add(r.Values["loss"])
		}
		w.observer.Progress(metrics.Progress{Agent: w.name, Activity: metrics.ColdStart, Done: int(i + 1), Total: int(set.Steps)})
	}
	clock.lap("learn")
	w.Learner.SetAdam(assemble.Adam(w.agent.Optimizer))
	record := metrics.Record{Kind: metrics.KindColdStart, Agent: w.name, Values: map[string]float64{
		"loss": loss.value(), "updates": float64(set.Steps), "trained_tokens": tokens.sum,
		"learn_seconds": clock.laps["learn"], "learn_tokens_per_second": tokens.sum / clock.laps["learn"],
	}}
	w.observer.Report(record)
	if !w.cfg.Learns(w.agent) { // frozen from here on
		err := w.Learner.Close(ctx)
		w.Learner = nil
		return err
	}
	return w.Learner.ResetOptimizer(ctx)
}

// demonstrations are the conversations to learn from.
func (w *worker) demonstrations() ([]*learner.Sequence, error) {
	shown, err := assemble.Demonstrations(w.cfg, w.Player, w.context())
	out := make([]*learner.Sequence, len(shown))
	for i, t := range shown {
		out[i] = &learner.Sequence{ID: t.ID, Tokens: t.Tokens, Sampled: t.Sampled}
	}
	return out, err
}

// dealer deals out indices, reshuffled for every pass over them: a function of the seed.
type dealer struct {
	rng  *rand.Rand
	perm []int
	at   int
}

func newDealer(n int, seed uint64, name string) *dealer {
	d := &dealer{rng: rand.New(rand.NewPCG(seed, assemble.Hash(name))), perm: make([]int, n), at: n}
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
