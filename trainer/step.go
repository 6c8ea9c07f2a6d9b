package trainer

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/failpoint"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// step is training step n as one agent's worker lives it, from its rollouts on: held is what rollOut
// collected, where the main agent's worker leads the rollouts and a sub-agent's serves the calls made in them.
// Trajectories stay here; only texts and outcomes went through the store. All workers run the same code.
// Beside it: algorithm 1 of the paper.
func (w *worker) step(ctx context.Context, n int64, held *experience) error {
	phase := store.Train(n)
	clock := held.clock
	clock.resume()

	// 1-2. Rolled out; the outcomes are there when the main agent's worker has verified them.
	outcomes, err := w.member.Outcomes(ctx, phase, played(held.plan))
	if err != nil {
		return err
	}
	outcomes, held.replaced = without(outcomes, held.plan.Replaced)
	clock.lap("rollout")

	// 3. Agree on the rollouts that every agent holds completely; the others are removed for all.
	complete, err := w.agree(ctx, phase, outcomes)
	if err != nil {
		return err
	}

	// 4. Align, group, normalise: one kernel call for all ragged groups.
	groups, err := w.groups(held, complete)
	if err != nil {
		return fmt.Errorf("step %d: %w", n, err)
	}
	advantages, err := w.normalise(ctx, groups)
	if err != nil {
		return fmt.Errorf("step %d: %w", n, err)
	}

	// 5. Learn: packed batches, fused loss, AdamW.
	sequences := w.sequences(n, held, groups, advantages.Groups)
	learned, err := w.learn(ctx, n, held.plan, sequences)
	if err != nil {
		return fmt.Errorf("step %d: %w", n, err)
	}
	clock.lap("learn")

	// 6. Version + 1, published; the step ends for everyone when all have.
	if err := w.member.ConfirmPlace(ctx); err != nil { // the engine's servers may be a successor's by now
		return err
	}
	failpoint.Here("commit.load.before")
	if err := w.Policy.UpdateWeights(ctx, n+1); err != nil {
		return err
	}
	failpoint.Here("commit.load.after")
	record := w.stepRecord(n, held, outcomes, complete, groups, advantages, learned, clock)
	if err := w.member.ConfirmPlace(ctx); err != nil { // the ledger may be a successor's by now
		return err
	}
	if err := w.archive.Record(w.ledgerLine(n, outcomes, complete, groups)); err != nil {
		return err
	}
	w.count(held, outcomes, mgrpo.Count(advantages.Groups))
	if err := w.report(ctx, record); err != nil { // before the version: whoever stops a run by its records stops it before the next step
		return err
	}
	if err := w.member.PublishVersion(ctx, n+1); err != nil {
		return err
	}
	w.archive.WriteTrajectories(phase, w.lines(held, groups, advantages.Groups))
	if err := w.member.Barrier(ctx, n+1-w.cfg.GRPO.Slack()); err != nil {
		return err
	}
	return w.countRemovals(n, outcomes, complete) // after the barrier: the step is in every agent's ledger
}

// experience is what one agent's worker keeps of a phase: its own trajectories, by id.
type experience struct {
	plan         store.Plan
	replaced     []store.Outcome // outcomes of queries that were replaced, of which nothing is learned
	trajectories map[string]*trajectory
	unscored     unscored   // calls of this agent whose answers have no score: their trajectories are not held
	stale        int        // trajectories given up for their age
	clock        *stopwatch // runs while the phase is rolled out, and in its step
}

// trajectory is one conversation with what its reward is made of.
type trajectory struct {
	agent.Trajectory
	program  string   // what the program that played the rollout wrote for people
	task     string   // the question or sub-task it started from
	expert   *float64 // a sub-agent's own score; nil where the format is invalid, and where it is unjudged
	unjudged bool     // a held-out question has nothing to compare a sub-agent's answer with
}

// agree returns, by query, the outcomes of the rollouts that are complete: verified, and with every trajectory
// held by the agent it belongs to.
func (w *worker) agree(ctx context.Context, p store.Phase, outcomes []store.Outcome) (map[string][]store.Outcome, error) {
	byAgent, err := w.member.Trajectories(ctx, p)
	if err != nil {
		return nil, err
	}
	known := map[string]map[string]bool{}
	for name, ids := range byAgent {
		known[name] = map[string]bool{}
		for _, id := range ids {
			known[name][id] = true
		}
	}
	complete := map[string][]store.Outcome{}
	for _, o := range outcomes {
		if o.Failed == "" && allHeld(o, w.mainName(), known) {
			complete[o.Query] = append(complete[o.Query], o)
		}
	}
	return complete, nil
}

// allHeld says whether each trajectory of a rollout is held by its own agent, of which known has the ids.
func allHeld(o store.Outcome, main string, known map[string]map[string]bool) bool {
	if !known[main][trajectoryID(o.Query, o.Rollout, main, 0, true)] {
		return false
	}
	for name, calls := range o.Calls {
		for i := range calls {
			if !known[name][trajectoryID(o.Query, o.Rollout, name, i, false)] {
				return false
			}
		}
	}
	return true
}

// groups forms this agent's group of every query, in the order of the plan; or, of a sub-agent where the
// configuration says so, one group of the whole step.
func (w *worker) groups(held *experience, complete map[string][]store.Outcome) ([]mgrpo.Group, error) {
	groups := make([]mgrpo.Group, 0, len(held.plan.Queries))
	for _, q := range held.plan.Queries {
		var rewards []mgrpo.RolloutRewards
		for _, o := range complete[q] {
			r, err := w.rewards(held, o)
			if err != nil {
				return nil, fmt.Errorf("rollout %s: %w", o.ID(), err)
			}
			rewards = append(rewards, mgrpo.RolloutRewards{Rollout: o.Rollout, Rewards: r})
		}
		if w.main {
			groups = append(groups, mgrpo.MainGroup(q, w.name, rewards))
		} else {
			groups = append(groups, w.Rules.Align.Group(w.cfg.Run.Seed, q, w.name, rewards))
		}
	}
	if !w.main && w.cfg.GRPO.SubGroup == "batch" {
		return []mgrpo.Group{mgrpo.Pool(w.name, groups)}, nil
	}
	return groups, nil
}

// rewards are this agent's rewards in one complete rollout, in the order of issue. Nothing is refused here
// but what another server made up: a trajectory whose reward cannot be computed is not held.
func (w *worker) rewards(held *experience, o store.Outcome) ([]float64, error) {
	if w.main {
		_, err := held.trajectory(trajectoryID(o.Query, o.Rollout, w.name, 0, true))
		return []float64{o.Reward}, err
	}
	out := make([]float64, o.Calls[w.name])
	for i := range out {
		t, err := held.trajectory(trajectoryID(o.Query, o.Rollout, w.name, i, false))
		if err != nil {
			return nil, err
		}
		if out[i], err = w.Rules.Rewards.SubReward(t.FormatValid, o.Format, &o.Correct, t.expert); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// trajectory finds a trajectory that the store's list says is here.
func (e *experience) trajectory(id string) (*trajectory, error) {
	if t, ok := e.trajectories[id]; ok {
		return t, nil
	}
	return nil, fmt.Errorf("trajectory %s is in the store's list of this worker's, which has none of that name", id)
}
