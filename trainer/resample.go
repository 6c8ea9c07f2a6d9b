package trainer

import (
	"context"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// firstReplacement is the place in the training order from which replacement queries are counted, far beyond those of steps.
// Like a step's own queries they are a function of the seed and their number alone.
const firstReplacement = 1 << 32

// replacement is replacement query r of training step n, r < grpo.resample.
func (w *worker) replacement(n int64, r int) task.Query {
	return w.trainQuery(n, firstReplacement, int64(w.cfg.GRPO.Resample), int64(r))
}

// resample replaces the queries of a step whose main group is degenerate, of which there is nothing to learn for the main
// agent: it has play play others, up to grpo.resample in all, until no group is degenerate. It returns the plan of what
// remains. Which queries these are follows from rewards alone, so a step that is played again comes to the same.
func (w *worker) resample(ctx context.Context, p store.Phase, plan store.Plan, play func([]task.Query) error) (store.Plan, error) {
	left := w.cfg.GRPO.Resample
	for fresh := plan.Queries; ; {
		outcomes, err := w.member.OutcomesSoFar(ctx, p)
		if err != nil {
			return plan, err
		}
		dead, err := w.degenerate(ctx, fresh, outcomes)
		if err != nil {
			return plan, err
		}
		dead = dead[:min(len(dead), left)]
		if len(dead) == 0 {
			return plan, nil
		}
		plan.Queries, fresh = slices.Clone(plan.Queries), nil
		var queries []task.Query
		for _, id := range dead {
			q := w.replacement(p.Step, w.cfg.GRPO.Resample-left)
			left--
			plan.Queries[slices.Index(plan.Queries, id)] = q.ID
			plan.Replaced = append(plan.Replaced, id)
			queries, fresh = append(queries, q), append(fresh, q.ID)
		}
		if err := play(queries); err != nil {
			return plan, err
		}
	}
}

// degenerate are those of the queries whose main group is degenerate, in their order.
func (w *worker) degenerate(ctx context.Context, queries []string, outcomes []store.Outcome) (dead []string, err error) {
	rewards := map[string][]mgrpo.RolloutRewards{}
	for _, o := range outcomes {
		if o.Failed == "" && o.Unscored == "" {
			rewards[o.Query] = append(rewards[o.Query], mgrpo.RolloutRewards{Rollout: o.Rollout, Rewards: []float64{o.Reward}})
		}
	}
	groups := make([]mgrpo.Group, len(queries))
	for i, q := range queries {
		groups[i] = mgrpo.MainGroup(q, w.name, rewards[q])
	}
	advantages, err := w.normalise(ctx, groups)
	if err != nil {
		return nil, err
	}
	for i, g := range advantages.Groups {
		if g.Degenerate {
			dead = append(dead, queries[i])
		}
	}
	return dead, nil
}

// resamples says whether queries of a phase may be replaced.
func (w *worker) resamples(p store.Phase) bool { return !p.Evaluates() && w.cfg.GRPO.Resample > 0 }

// played is how many rollouts a phase has, those of replaced queries too.
func played(p store.Plan) int { return (len(p.Queries) + len(p.Replaced)) * p.Rollouts }

// without are the outcomes of queries that were not replaced, and those of queries that were.
func without(outcomes []store.Outcome, replaced []string) (kept, gone []store.Outcome) {
	for _, o := range outcomes {
		if slices.Contains(replaced, o.Query) {
			gone = append(gone, o)
		} else {
			kept = append(kept, o)
		}
	}
	return kept, gone
}
