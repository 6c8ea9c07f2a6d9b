package trainer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// normalise turns the groups' rewards into advantages, all ragged groups in one kernel call.
func (w *Worker) normalise(groups []mgrpo.Group) ([]mgrpo.GroupAdvantage, error) {
	rewards := make([]mgrpo.RewardGroup, len(groups))
	for i, g := range groups {
		rewards[i] = mgrpo.RewardGroup{Rewards: g.Rewards(), Weights: g.Weights()}
	}
	return learner.Normalise(w.convention, rewards)
}

// sequences are what the learner reads: the trajectories of complete rollouts with weight, advantage and
// group, by query.
func (w *Worker) sequences(held *holding, groups []mgrpo.Group, advantages []mgrpo.GroupAdvantage) map[string][]*learner.Sequence {
	out := map[string][]*learner.Sequence{}
	for i, g := range groups {
		for j, m := range g.Members {
			if m.Weight == 0 {
				continue
			}
			t := held.trajectories[trajectoryID(g.Query, m.Rollout, w.name, m.Invocation, w.main)]
			out[g.Query] = append(out[g.Query], &learner.Sequence{
				ID: t.ID, Tokens: t.Tokens, Sampled: t.Sampled, Behaviour: t.LogProbs,
				Group: int64(i), Weight: m.Weight, Advantage: advantages[i].Advantage[j],
			})
		}
	}
	return out
}

// learn runs the step's optimizer updates: epochs × minibatches, each minibatch a set of whole queries.
func (w *Worker) learn(ctx context.Context, n int64, plan store.Plan, byQuery map[string][]*learner.Sequence) (learned, error) {
	var out learned
	if !w.trains() {
		return out, nil
	}
	if err := w.learner.Prepare(ctx, slices.Concat(values(plan.Queries, byQuery)...)); err != nil {
		return out, err
	}
	total := w.cfg.GRPO.Epochs * w.cfg.GRPO.Minibatches
	for epoch := range w.cfg.GRPO.Epochs {
		for _, queries := range w.minibatches(n, epoch, plan.Queries) {
			batch := slices.Concat(values(queries, byQuery)...)
			r, err := w.learner.Update(ctx, batch, w.schedule.At(n))
			if err != nil {
				return out, fmt.Errorf("update %d of %d: %w", len(out.reports)+1, total, err)
			}
			if len(out.reports) == 0 {
				if err := w.checkGap(r); err != nil {
					return out, err
				}
			}
			out.reports = append(out.reports, r)
			w.observer.Progress(w.name, "learn", len(out.reports), total)
		}
	}
	return out, nil
}

// learned is what the updates of one step reported, in order.
type learned struct{ reports []learner.Report }

// minibatches deals a step's queries out anew in every epoch, by the run's seed.
func (w *Worker) minibatches(n int64, epoch int, queries []string) [][]string {
	m := min(w.cfg.GRPO.Minibatches, len(queries))
	if m <= 1 {
		return [][]string{queries}
	}
	shuffled := slices.Clone(queries)
	rng := rand.New(rand.NewPCG(w.cfg.Run.Seed, uint64(n)*uint64(w.cfg.GRPO.Epochs)+uint64(epoch)))
	rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	out := make([][]string, m)
	for i, q := range shuffled {
		out[i%m] = append(out[i%m], q)
	}
	return out
}

// checkGap compares the sampler's log-probs with the trainer's before the first update of a step. They are
// of the same weights, so a gap means that the two forward passes disagree.
func (w *Worker) checkGap(r learner.Report) error {
	gap, known := r.Values["gap_mean"]
	switch {
	case !known:
	case gap > w.cfg.GRPO.GapStop:
		return fmt.Errorf("the sampler's and the trainer's log-probs differ by %.3g nats on average, more than grpo.gap_stop %.3g: the two do not run the same policy", gap, w.cfg.GRPO.GapStop)
	case gap > w.cfg.GRPO.GapWarn:
		w.observer.Note(w.name, fmt.Sprintf("warning: log-prob gap between sampler and trainer is %.3g nats (grpo.gap_warn %.3g)", gap, w.cfg.GRPO.GapWarn))
	}
	return nil
}

func values(keys []string, m map[string][]*learner.Sequence) [][]*learner.Sequence {
	out := make([][]*learner.Sequence, len(keys))
	for i, k := range keys {
		out[i] = m[k]
	}
	return out
}
