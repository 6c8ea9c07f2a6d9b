package worker

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// playRollout plays rollout k of a query.
type playRollout func(ctx context.Context, q task.Query, k int) (store.Outcome, error)

// playAll plays all rollouts of a phase's queries and returns the plan of the remaining queries. With grpo.resample, a
// query is degenerate if all rewards of its main group are equal, so that the main agent learns nothing from it. Such a
// query is replaced when its last rollout has ended. Replacements may be replaced, too. grpo.resample limits the number of
// replacements.
//
// The choice of queries does not depend on the order in which they end, so a step that is played again has the same queries.
// Replacements are used in order, until each degenerate query, replacements included, has one or the limit is reached.
func (ro *rollouts) playAll(ctx context.Context, p store.Phase, plan store.Plan, queries []task.Query, play playRollout) (store.Plan, error) {
	bound := 0
	if ro.resamples(p) {
		bound = ro.cfg.GRPO.Resample
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(ro.cfg.ConversationsAtOnce(ro.agent))
	ended := make(chan []store.Outcome, len(queries)) // outcomes of a query; sends never block, as a replacement begins after a receive
	begin := func(q task.Query) {
		outcomes := make([]store.Outcome, plan.Rollouts)
		var left atomic.Int64
		left.Store(int64(plan.Rollouts))
		for k := range outcomes {
			g.Go(func() (err error) {
				if outcomes[k], err = play(gctx, q, k); err == nil && left.Add(-1) == 0 {
					ended <- outcomes
				}
				return err
			})
		}
	}
	for _, q := range queries {
		begin(q)
	}
	var replacements []string
	degenerate := map[string]bool{}
	for playing := len(queries); bound > 0 && playing > 0; playing-- {
		var outcomes []store.Outcome
		select {
		case outcomes = <-ended:
		case <-gctx.Done():
			return plan, cmp.Or(g.Wait(), context.Cause(gctx))
		}
		dead, err := ro.degenerate(gctx, outcomes)
		if err != nil {
			err = cmp.Or(context.Cause(gctx), err) // an earlier rollout failed
			cancel()
			_ = g.Wait()
			return plan, err
		}
		degenerate[outcomes[0].Query] = dead
		if r := len(replacements); dead && r < bound {
			q := ro.queries.replacement(p.Step, r)
			replacements = append(replacements, q.ID)
			begin(q)
			playing++
		}
	}
	return withReplacements(plan, replacements, degenerate), g.Wait()
}

// withReplacements returns the plan in which replacements have taken the places of degenerate queries. They first
// replace degenerate queries in the order of the plan. Replacements that are degenerate, too, are replaced next. There
// are at most as many replacements as degenerate queries.
func withReplacements(plan store.Plan, replacements []string, degenerate map[string]bool) store.Plan {
	played := slices.Concat(plan.Queries, replacements)
	plan.Queries = slices.Clone(plan.Queries)
	for i, next := 0, 0; next < len(replacements); i++ {
		if degenerate[played[i]] {
			plan.Queries[slices.Index(plan.Queries, played[i])] = replacements[next]
			plan.Replaced = append(plan.Replaced, played[i])
			next++
		}
	}
	return plan
}

// degenerate reports whether the main group of a query with these outcomes is degenerate.
func (ro *rollouts) degenerate(ctx context.Context, outcomes []store.Outcome) (bool, error) {
	var rewards []mgrpo.RolloutRewards
	for _, o := range outcomes {
		if o.Failed == "" && o.Unscored == "" {
			rewards = append(rewards, mgrpo.RolloutRewards{Rollout: o.Rollout, Rewards: []float64{o.Reward}})
		}
	}
	advantages, err := ro.normaliser.normalise(ctx, []mgrpo.Group{mgrpo.MainGroup(outcomes[0].Query, ro.name, rewards)})
	return err == nil && advantages.Groups[0].Degenerate, err
}

// resamples reports whether queries of a phase may be replaced.
func (ro *rollouts) resamples(p store.Phase) bool { return !p.Evaluates() && ro.cfg.GRPO.Resample > 0 }

// playedRollouts returns the number of rollouts of a phase, including rollouts of replaced queries.
func playedRollouts(p store.Plan) int { return (len(p.Queries) + len(p.Replaced)) * p.Rollouts }

// splitReplaced splits outcomes by whether their queries were replaced.
func splitReplaced(outcomes []store.Outcome, replaced []string) (kept, ofReplaced []store.Outcome) {
	for _, o := range outcomes {
		if slices.Contains(replaced, o.Query) {
			ofReplaced = append(ofReplaced, o)
		} else {
			kept = append(kept, o)
		}
	}
	return kept, ofReplaced
}
