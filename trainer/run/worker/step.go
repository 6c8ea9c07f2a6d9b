package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// steps trains this agent on the rollouts of each step.
type steps struct {
	*common
	policy        policy.Lifecycle
	rules         assemble.Rules
	normaliser    normaliser
	archive       *archive.Archive
	reports       *reports
	refusedSteps  failureStreak // steps with a refused update
	unscoredSteps failureStreak // steps with too many rollouts without a score
}

// failureStreak is the number of consecutive latest steps with a failure of one kind.
type failureStreak int

// maxStreak is the length of a streak that ends the run. A single failure may be caused by the step's batch or a
// short outage; several in a row have another cause.
const maxStreak = 3

// add counts a step and reports whether the run must end.
func (s *failureStreak) add(failed bool) bool {
	if !failed {
		*s = 0
		return false
	}
	*s++
	return *s >= maxStreak
}

// step executes training step n of one agent's worker, after its rollouts. exp is the result of rollouts.step for step
// n: the main agent's worker led the rollouts, and a sub-agent's worker answered their calls. exp has this worker's own
// trajectories, which do not pass through the store. All workers run the same code. Compare it with algorithm 1 of the
// paper.
func (s *steps) step(ctx context.Context, n int64, exp *experience) error {
	phase := store.TrainPhase(n)
	exp.clock.resume()
	// 1. Roll out: done. The main agent's worker has published the outcomes after verifying them.
	outcomes, err := s.member.Phases.Outcomes(ctx, phase, playedRollouts(exp.plan))
	if err != nil {
		return err
	}
	outcomes, exp.replaced = splitReplaced(outcomes, exp.plan.Replaced)
	exp.clock.lap("rollout")

	// 2. Agree on the complete rollouts: every agent has its trajectories. The others are removed for all agents.
	complete, err := s.agree(ctx, phase, outcomes)
	if err != nil {
		return err
	}
	exp.clock.lap("agree")

	// 3. Group: align, then normalise all ragged groups in one kernel call.
	groups, err := s.groups(exp, complete)
	if err != nil {
		return fmt.Errorf("step %d: %w", n+1, err)
	}
	advantages, err := s.normaliser.normalise(ctx, groups)
	if err != nil {
		return fmt.Errorf("step %d: %w", n+1, err)
	}

	// 4. Learn: packed batches, fused loss, AdamW.
	sequences := s.sequences(n, exp, groups, advantages.Groups)
	updates, err := s.learn(ctx, n, exp.plan, sequences)
	if err != nil {
		return fmt.Errorf("step %d: %w", n+1, err)
	}
	exp.clock.lap("learn")

	// 5. Commit: publish version n + 1. Then wait for the other workers, which may be at most Slack steps behind.
	if err := s.load(ctx, n+1); err != nil {
		return err
	}
	record := s.reports.step(stepResult{step: n, exp: exp, outcomes: outcomes, complete: complete, groups: groups, advantages: advantages, updates: updates})
	if err := s.member.ConfirmPlace(ctx); err != nil { // the ledger may belong to a successor by now
		return err
	}
	if err := s.archive.AppendLedger(s.ledgerLine(n, outcomes, complete, groups)); err != nil {
		return err
	}
	s.reports.count(exp, outcomes, mgrpo.CountGroups(advantages.Groups))
	if err := s.report(ctx, record); err != nil { // before the version: a reader of records may ask for a stop before the next step
		return err
	}
	if err := s.member.Versions.Publish(ctx, n+1); err != nil {
		return err
	}
	s.archive.Trajectories.Write(phase, exp.lines(s.agent, groups, advantages.Groups))
	if err := s.member.Versions.Await(ctx, n+1-s.cfg.GRPO.Slack()); err != nil {
		return err
	}
	return s.countUnscored(n, outcomes, complete) // after the wait: without slack, the step is in every agent's ledger
}

// load gives the policy the weights of a version.
func (s *steps) load(ctx context.Context, version int64) error {
	if err := s.member.ConfirmPlace(ctx); err != nil { // the engine's servers may belong to a successor by now
		return err
	}
	failpoint.Here("commit.load.before")
	if err := s.policy.UpdateWeights(ctx, version); err != nil {
		return err
	}
	failpoint.Here("commit.load.after")
	return nil
}

// stepResult holds the intermediate results of a step, for its record.
type stepResult struct {
	step       int64
	exp        *experience
	outcomes   []store.Outcome            // without outcomes of replaced queries
	complete   map[string][]store.Outcome // by query; see agree
	groups     []mgrpo.Group
	advantages learner.Advantages
	updates    []learner.Report // in order
}

// experience is one worker's data of a phase: its own trajectories, by id.
type experience struct {
	plan         store.Plan
	replaced     []store.Outcome // outcomes of replaced queries, which are not trained on
	trajectories map[string]*trajectory
	unscored     unscoredCalls // calls of this agent whose answers have no score: their trajectories are not held
	stale        int           // number of trajectories dropped because of their age
	clock        *stopwatch    // runs during the rollouts of the phase and during its step
}

// trajectory is one conversation with the data for its reward.
type trajectory struct {
	conversation agent.Trajectory

	program  string   // the end of the standard error of the program that played the rollout
	task     string   // question or sub-task with which it started
	expert   *float64 // a sub-agent's own score; nil if the format is invalid or the answer unjudged
	unjudged bool     // a held-out question has no reference for a sub-agent's answer

	removalTokens int // tokens of the main agent's further answers, each without a call; see callRemovals
}

// agree returns the outcomes of the complete rollouts, by query: rollouts that were verified and whose trajectories are all
// held by their agents.
func (s *steps) agree(ctx context.Context, p store.Phase, outcomes []store.Outcome) (map[string][]store.Outcome, error) {
	byAgent, err := s.member.Phases.Trajectories(ctx, p)
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
		if o.Failed == "" && heldByAll(o, s.cfg.Main().Name, known) {
			complete[o.Query] = append(complete[o.Query], o)
		}
	}
	return complete, nil
}

// heldByAll reports whether each trajectory of a rollout is held by its own agent. known holds the ids that each agent holds.
func heldByAll(o store.Outcome, main string, known map[string]map[string]bool) bool {
	if !known[main][agent.TrajectoryID(policy.Key{Query: o.Query, Rollout: o.Rollout}, true)] {
		return false
	}
	for name, calls := range o.Calls {
		for i := range calls {
			if !known[name][agent.TrajectoryID(policy.Key{Query: o.Query, Rollout: o.Rollout, Agent: name, Invocation: i}, false)] {
				return false
			}
		}
	}
	return true
}

// groups forms this agent's group for every query, in the order of the plan. For a sub-agent the configuration may ask
// for one group of the whole step instead.
func (s *steps) groups(exp *experience, complete map[string][]store.Outcome) ([]mgrpo.Group, error) {
	groups := make([]mgrpo.Group, 0, len(exp.plan.Queries))
	for _, q := range exp.plan.Queries {
		var rewards []mgrpo.RolloutRewards
		for _, o := range complete[q] {
			r, err := s.rewards(exp, o)
			if err != nil {
				return nil, fmt.Errorf("rollout %s: %w", o.ID(), err)
			}
			rewards = append(rewards, mgrpo.RolloutRewards{Rollout: o.Rollout, Rewards: r})
		}
		if s.main {
			groups = append(groups, mgrpo.MainGroup(q, s.name, rewards))
		} else {
			groups = append(groups, s.rules.Align.Group(s.cfg.Run.Seed, q, s.name, rewards))
		}
	}
	if !s.main && s.cfg.GRPO.SubGroup == config.BatchGroup {
		return []mgrpo.Group{mgrpo.Pool(s.name, groups)}, nil
	}
	return groups, nil
}

// rewards returns this agent's rewards in one complete rollout, in the order of issue. An error means that another
// server published wrong data, because workers do not publish trajectories whose reward cannot be computed.
func (s *steps) rewards(exp *experience, o store.Outcome) ([]float64, error) {
	if s.main {
		_, err := exp.trajectory(idOf(s.agent, o.Query, o.Rollout, 0))
		return []float64{o.Reward}, err
	}
	out := make([]float64, o.Calls[s.name])
	for i := range out {
		t, err := exp.trajectory(idOf(s.agent, o.Query, o.Rollout, i))
		if err != nil {
			return nil, err
		}
		if out[i], err = s.subReward(o, i, t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// trajectory returns a trajectory that the store lists as held here.
func (e *experience) trajectory(id string) (*trajectory, error) {
	if t, ok := e.trajectories[id]; ok {
		return t, nil
	}
	return nil, fmt.Errorf("the store lists trajectory %s as held by this worker, which does not have it", id)
}

// stopwatch measures the parts of a step for the report. Results do not depend on it.
type stopwatch struct {
	last time.Time
	laps map[string]float64 // seconds
}

func newStopwatch() *stopwatch {
	return &stopwatch{last: time.Now(), laps: map[string]float64{}}
}

// lap adds the time since the last lap, or since resume, to a part.
func (s *stopwatch) lap(name string) {
	now := time.Now()
	s.laps[name] += now.Sub(s.last).Seconds()
	s.last = now
}

// resume begins a lap without adding the time since the last one to any part.
func (s *stopwatch) resume() { s.last = time.Now() }
