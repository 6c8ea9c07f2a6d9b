package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// normaliser normalises rewards on the agent's device.
type normaliser struct {
	device *torch.Device // nil: the agent's model is hosted
	rules  assemble.Rules
}

// normalise converts the groups' rewards to advantages on the agent's device, all ragged groups in one launch.
func (n normaliser) normalise(ctx context.Context, groups []mgrpo.Group) (learner.Advantages, error) {
	rewards := make([]mgrpo.RewardGroup, len(groups))
	for i, g := range groups {
		rewards[i] = mgrpo.RewardGroup{Rewards: g.Rewards(), Weights: g.Weights()}
	}
	if n.device == nil { // a hosted model: its advantages are shown in the report, and not trained on
		advantages, err := kernels.NormaliserOn(kernels.CPU)(n.rules.Convention, rewards)
		return learner.Advantages{Groups: advantages, Backend: kernels.CPU.String()}, err
	}
	return learner.Normalise(ctx, n.device, n.rules.Convention, rewards)
}

// sequences returns the learner's input for step n: the trajectories of complete rollouts with weight, advantage and
// group, by query. It omits trajectories with the weight 0.
func (s *steps) sequences(n int64, exp *experience, groups []mgrpo.Group, advantages []mgrpo.GroupAdvantage) map[string][]*learner.Sequence {
	out := map[string][]*learner.Sequence{}
	for i, g := range groups {
		for j, m := range g.Members {
			if m.Weight == 0 {
				continue
			}
			t := exp.trajectories[idOf(s.agent, m.Query, m.Rollout, m.Invocation)]
			for _, row := range t.conversation.Rows() {
				if len(row.Tokens) == 0 { // from a program that never sent a request
					continue
				}
				out[m.Query] = append(out[m.Query], &learner.Sequence{
					ID: row.ID, TrajectoryID: t.conversation.ID, Tokens: row.Tokens, Sampled: row.Sampled, Behaviour: row.LogProbs, Routes: row.Routes,
					Group: int64(i), Weight: m.Weight, Advantage: advantages[i].Advantage[j], Reward: m.Reward, Step: n, Stale: row.Version != n,
				})
			}
		}
	}
	return out
}

// learn runs the step's optimizer updates and returns their reports. There are epochs × minibatches updates, or fewer if a
// step has fewer queries than minibatches. Each minibatch is a set of whole queries.
func (s *steps) learn(ctx context.Context, n int64, plan store.Plan, byQuery map[string][]*learner.Sequence) (reports []learner.Report, err error) {
	if !s.trains() {
		return nil, nil
	}
	s.watchPasses(metrics.LogProbs, 0, 1)
	defer s.learner.Rank0.Watch(nil)
	if err := s.learner.Prepare(ctx, slices.Concat(values(plan.Queries, byQuery)...)); err != nil {
		return nil, err
	}
	total := s.cfg.GRPO.Epochs * s.cfg.GRPO.Minibatches
	changed := false // the weights have changed since the rollouts were sampled
	for epoch := range s.cfg.GRPO.Epochs {
		for _, ids := range s.minibatches(n, epoch, plan.Queries) {
			batch := slices.Concat(values(ids, byQuery)...)
			s.watchPasses(metrics.Learn, len(reports), total)
			failpoint.Here("learn.update.before")
			r, err := s.learner.Update(ctx, batch, s.rules.Schedule.At(n))
			if err != nil {
				return nil, fmt.Errorf("update %d of %d: %w", len(reports)+1, total, err)
			}
			failpoint.Here("learn.update.after")
			reports = append(reports, r)
			if changed {
				delete(r.Values, metrics.GapMean)
				delete(r.Values, metrics.RoutingDiffers)
			} else if err := s.checkSampler(r.Values); err != nil {
				return nil, err
			}
			changed = changed || !r.Skipped && r.Refused == nil
			if r.Refused != nil {
				s.noteRefusal(n, len(reports), batch, r.Refused)
			}
		}
	}
	return reports, s.countRefusals(reports)
}

// watchPasses reports the progress of one of several updates, or of the work before them. It assumes the same number of
// passes for each.
func (s *steps) watchPasses(a metrics.Activity, before, updates int) {
	s.learner.Rank0.Watch(func(done, total int) {
		s.observer.Progress(metrics.Progress{Agent: s.name, Activity: a, Done: before*total + done, Total: updates * total})
	})
}

// noteRefusal reports an update that was refused, and saves its batch for inspection.
func (s *steps) noteRefusal(n int64, update int, batch []*learner.Sequence, refused error) {
	lines := make([]archive.Sequence, len(batch))
	for i, q := range batch {
		lines[i] = archive.Sequence{ID: q.ID, Group: q.Group, Weight: archive.Number(q.Weight), Advantage: archive.Number(q.Advantage),
			Tokens: q.Tokens, Sampled: q.Sampled}
		for _, v := range q.Behaviour {
			lines[i].Behaviour = append(lines[i].Behaviour, archive.Number(v))
		}
	}
	path, err := s.archive.Trajectories.WriteRefused(n, update, lines)
	kept := "its batch is in " + path
	if err != nil {
		kept = fmt.Sprintf("its batch could not be saved: %v", err)
	}
	s.observer.Note(metrics.Warnf(s.name, metrics.TopicUpdate,
		"update %d of step %d was refused, the weights are as before: %v; %s", update, n+1, refused, kept))
}

// countRefusals returns an error if too many consecutive steps had refused updates.
func (s *steps) countRefusals(reports []learner.Report) error {
	i := slices.IndexFunc(reports, func(r learner.Report) bool { return r.Refused != nil })
	if !s.refusedSteps.add(i >= 0) {
		return nil
	}
	return fmt.Errorf("updates were refused in %d consecutive steps (batches in %s), last: %w", s.refusedSteps,
		s.archive.Trajectories.FailedDir(), reports[i].Refused)
}

// minibatches divides a step's queries into minibatches, differently in each epoch, by the run's seed.
func (s *steps) minibatches(n int64, epoch int, queries []string) [][]string {
	m := min(s.cfg.GRPO.Minibatches, len(queries))
	if m <= 1 {
		return [][]string{queries}
	}
	shuffled := slices.Clone(queries)
	rng := rand.New(rand.NewPCG(s.cfg.Run.Seed, uint64(n)*uint64(s.cfg.GRPO.Epochs)+uint64(epoch)))
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
func (s *steps) checkSampler(values map[string]float64) error {
	gap, differs := values[metrics.GapMean], values[metrics.RoutingDiffers]
	switch {
	case gap > s.cfg.GRPO.GapStop:
		return fmt.Errorf("the sampler's and the trainer's log-probs differ by %.3g nats on average, more than grpo.gap_stop %.3g: the two do not run "+
			"the same policy", gap, s.cfg.GRPO.GapStop)
	case differs > s.cfg.GRPO.RoutingStop:
		return fmt.Errorf("the trainer's router would choose other experts than the sampler's for %.3g of the tokens, a layer's mean, more than "+
			"grpo.routing_stop %.3g: the two do not run the same policy", differs, s.cfg.GRPO.RoutingStop)
	case gap > s.cfg.GRPO.GapWarn:
		s.observer.Note(metrics.Warnf(s.name, metrics.TopicGap, "log-prob gap between sampler and trainer is %.3g nats (grpo.gap_warn %.3g)", gap,
			s.cfg.GRPO.GapWarn))
	}
	if differs > s.cfg.GRPO.RoutingWarn {
		s.observer.Note(metrics.Warnf(s.name, metrics.TopicGap, "the trainer's router would choose other experts than the sampler's for %.3g of the "+
			"tokens, a layer's mean (grpo.routing_warn %.3g)", differs, s.cfg.GRPO.RoutingWarn))
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
