package trainer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/failpoint"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// normalise turns the groups' rewards into advantages on the agent's device, all ragged groups in one launch.
func (w *worker) normalise(ctx context.Context, groups []mgrpo.Group) (learner.Advantages, error) {
	rewards := make([]mgrpo.RewardGroup, len(groups))
	for i, g := range groups {
		rewards[i] = mgrpo.RewardGroup{Rewards: g.Rewards(), Weights: g.Weights()}
	}
	if w.Device == nil { // a hosted model: its advantages are shown in the report, and not trained on
		of, err := learner.Normaliser(kernels.CPU)(w.Rules.Convention, rewards)
		return learner.Advantages{Groups: of, Backend: kernels.CPU.String()}, err
	}
	return learner.Normalise(ctx, w.Device, w.Rules.Convention, rewards)
}

// sequences returns the learner's input for step n: the trajectories of complete rollouts with weight, advantage and
// group, by query.
func (w *worker) sequences(n int64, held *experience, groups []mgrpo.Group, advantages []mgrpo.GroupAdvantage) map[string][]*learner.Sequence {
	out := map[string][]*learner.Sequence{}
	for i, g := range groups {
		for j, m := range g.Members {
			if m.Weight == 0 {
				continue
			}
			t := held.trajectories[trajectoryID(m.Query, m.Rollout, w.name, m.Invocation, w.main)]
			for _, row := range t.Rows() {
				if len(row.Tokens) == 0 { // from a program that never asked
					continue
				}
				out[m.Query] = append(out[m.Query], &learner.Sequence{
					ID: row.ID, Whole: t.ID, Tokens: row.Tokens, Sampled: row.Sampled, Behaviour: row.LogProbs, Routes: row.Routes,
					Group: int64(i), Weight: m.Weight, Advantage: advantages[i].Advantage[j], Stale: row.Version != n,
				})
			}
		}
	}
	return out
}

// learn runs the step's optimizer updates: epochs × minibatches, where each minibatch is a set of whole queries.
func (w *worker) learn(ctx context.Context, n int64, plan store.Plan, byQuery map[string][]*learner.Sequence) (learned, error) {
	var out learned
	if !w.trains() {
		return out, nil
	}
	w.watchPasses(metrics.LogProbs, 0, 1)
	defer w.Learner.Watch(nil)
	if err := w.Learner.Prepare(ctx, slices.Concat(values(plan.Queries, byQuery)...)); err != nil {
		return out, err
	}
	total := w.cfg.GRPO.Epochs * w.cfg.GRPO.Minibatches
	changed := false // whether the weights have changed since the rollouts were sampled
	for epoch := range w.cfg.GRPO.Epochs {
		for _, queries := range w.minibatches(n, epoch, plan.Queries) {
			batch := slices.Concat(values(queries, byQuery)...)
			w.watchPasses(metrics.Learn, len(out.reports), total)
			failpoint.Here("learn.update.before")
			r, err := w.Learner.Update(ctx, batch, w.Rules.Schedule.At(n))
			if err != nil {
				return out, fmt.Errorf("update %d of %d: %w", len(out.reports)+1, total, err)
			}
			failpoint.Here("learn.update.after")
			out.reports = append(out.reports, r)
			if changed {
				delete(r.Values, "gap_mean")
				delete(r.Values, "routing_differs")
			} else if err := w.checkSampler(r.Values); err != nil {
				return out, err
			}
			changed = changed || !r.Skipped && r.Refused == nil
			if r.Refused != nil {
				w.noteRefusal(n, len(out.reports), batch, r.Refused)
			}
		}
	}
	return out, w.countRefusals(out)
}

// watchPasses reports the progress of one of several updates, or of the work before them. It assumes the same number of
// passes for each.
func (w *worker) watchPasses(a metrics.Activity, before, updates int) {
	w.Learner.Watch(func(done, of int) {
		w.observer.Progress(metrics.Progress{Agent: w.name, Activity: a, Done: before*of + done, Total: updates * of})
	})
}

// noteRefusal reports an update that was refused, and saves its batch for inspection.
func (w *worker) noteRefusal(n int64, update int, batch []*learner.Sequence, refused error) {
	lines := make([]archive.Sequence, len(batch))
	for i, q := range batch {
		lines[i] = archive.Sequence{ID: q.ID, Group: q.Group, Weight: archive.Number(q.Weight), Advantage: archive.Number(q.Advantage),
			Tokens: q.Tokens, Sampled: q.Sampled}
		for _, v := range q.Behaviour {
			lines[i].Behaviour = append(lines[i].Behaviour, archive.Number(v))
		}
	}
	path, err := w.archive.WriteRefused(n, update, lines)
	kept := "its batch is in " + path
	if err != nil {
		kept = fmt.Sprintf("its batch could not be saved: %v", err)
	}
	w.observer.Note(metrics.Warnf(w.name, metrics.TopicUpdate, "update %d of step %d was refused, the weights are as before: %v; %s", update, n, refused, kept))
}

// maxRefusedSteps is the number of steps in a row with refused updates that ends the run: one may be due to its batch,
// several are not.
const maxRefusedSteps = 3

// countRefusals returns an error when too many steps in a row had refused updates.
func (w *worker) countRefusals(l learned) error {
	i := slices.IndexFunc(l.reports, func(r learner.Report) bool { return r.Refused != nil })
	if i < 0 {
		w.refused = 0
		return nil
	}
	if w.refused++; w.refused < maxRefusedSteps {
		return nil
	}
	return fmt.Errorf("updates were refused in %d steps in a row (batches in %s), last: %w",
		w.refused, w.archive.FailedDir(), l.reports[i].Refused)
}

// learned holds the reports of the updates of one step, in order.
type learned struct{ reports []learner.Report }

// minibatches divides a step's queries into minibatches, differently in each epoch, by the run's seed.
func (w *worker) minibatches(n int64, epoch int, queries []string) [][]string {
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

// checkSampler compares the sampler's log-probs and experts with the trainer's before the first update of a step, for
// trajectories that the trained version sampled. Both have the same weights, so a difference means that the two forward
// passes disagree.
func (w *worker) checkSampler(values map[string]float64) error {
	gap, differs := values["gap_mean"], values["routing_differs"]
	switch {
	case gap > w.cfg.GRPO.GapStop:
		return fmt.Errorf("the sampler's and the trainer's log-probs differ by %.3g nats on average, more than grpo.gap_stop %.3g: the two do not run the same policy", gap, w.cfg.GRPO.GapStop)
	case differs > w.cfg.GRPO.RoutingStop:
		return fmt.Errorf("the trainer's router would choose other experts than the sampler's for %.3g of the tokens, a layer's mean, more than grpo.routing_stop %.3g: the two do not run the same policy", differs, w.cfg.GRPO.RoutingStop)
	case gap > w.cfg.GRPO.GapWarn:
		w.observer.Note(metrics.Warnf(w.name, metrics.TopicGap, "log-prob gap between sampler and trainer is %.3g nats (grpo.gap_warn %.3g)", gap, w.cfg.GRPO.GapWarn))
	}
	if differs > w.cfg.GRPO.RoutingWarn {
		w.observer.Note(metrics.Warnf(w.name, metrics.TopicGap, "the trainer's router would choose other experts than the sampler's for %.3g of the tokens, a layer's mean (grpo.routing_warn %.3g)", differs, w.cfg.GRPO.RoutingWarn))
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
