package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Phases holds the plans, the outcomes and the lists of trajectories of phases.
type Phases struct{ at *place }

// Begin publishes the plan of a phase.
func (ps *Phases) Begin(ctx context.Context, p Phase, plan Plan) error {
	defer failpoint.Around("rollout.begin")()
	return ps.at.writeOnce(ctx, p, "plan", "plan", &plan, "the plan")
}

// Plan waits until a phase has begun, and returns its plan.
func (ps *Phases) Plan(ctx context.Context, p Phase) (Plan, error) {
	var plan Plan
	key := ps.at.key("plan", p.String())
	err := ps.at.wait(ctx, func(ctx context.Context) (bool, error) {
		text, err := ps.at.rdb.HGet(ctx, key, "plan").Result()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		plan, err = decode[Plan](key, text)
		return err == nil, err
	}, func() ([]string, string) { return ps.at.agents.main(), "the beginning of " + p.String() }, "plan/"+p.String())
	return plan, err
}

// PublishFinalPlan publishes the final plan of a phase, before the phase ends: some queries may have been replaced by others.
func (ps *Phases) PublishFinalPlan(ctx context.Context, p Phase, plan Plan) error {
	return ps.at.writeOnce(ctx, p, "plan", "final", &plan, "the final plan")
}

// FinalPlan returns the final plan of a phase that has ended. It returns an error if there is none.
func (ps *Phases) FinalPlan(ctx context.Context, p Phase) (Plan, error) {
	key := ps.at.key("plan", p.String())
	text, err := ps.at.field(ctx, key, "final", "the final plan of "+p.String())
	if err != nil {
		return Plan{}, err
	}
	if text == "" {
		return Plan{}, &MalformedError{Key: key, Msg: "the phase has ended, but its final plan is missing: do all workers have the same configuration?"}
	}
	return decode[Plan](key, text)
}

// End publishes that all rollouts of a phase have ended. Claim then returns ErrPhaseEnded to every worker once all invocations
// are claimed.
func (ps *Phases) End(ctx context.Context, p Phase) error {
	defer failpoint.Around("rollout.end")()
	return ps.at.writeOnce(ctx, p, "plan", "ended", new(phaseEnd(true)), "the end")
}

// PublishOutcome publishes the outcome of a rollout, once.
func (ps *Phases) PublishOutcome(ctx context.Context, p Phase, o Outcome) error {
	defer failpoint.Around("rollout.outcome")()
	return ps.at.writeOnce(ctx, p, "outcome", o.ID(), &o, "outcome "+o.ID())
}

// Outcomes waits until a phase has n outcomes, and returns them in the order of query ids and rollouts.
func (ps *Phases) Outcomes(ctx context.Context, p Phase, n int) ([]Outcome, error) {
	var stored int64
	var out []Outcome
	key := ps.at.key("outcome", p.String())
	err := ps.at.wait(ctx, func(ctx context.Context) (bool, error) {
		var err error
		if stored, err = ps.at.rdb.HLen(ctx, key).Result(); err != nil || stored < int64(n) {
			return false, err
		}
		out, err = ps.readOutcomes(ctx, key)
		return err == nil, err
	}, func() ([]string, string) {
		return ps.at.agents.main(), fmt.Sprintf("the outcomes of %s, %d of %d are there", p, stored, n)
	}, "outcome/"+p.String())
	if err != nil {
		return nil, err
	}
	if len(out) != n {
		return nil, &MalformedError{Key: key, Msg: fmt.Sprintf("%d outcomes where %d were expected", len(out), n)}
	}
	return out, nil
}

func (ps *Phases) readOutcomes(ctx context.Context, key string) ([]Outcome, error) {
	texts, err := ps.at.rdb.HGetAll(ctx, key).Result()
	if err != nil {
		return nil, err
	}
	out := make([]Outcome, 0, len(texts))
	for id, text := range texts {
		o, err := decode[Outcome](key+" "+clip(id), text)
		if err != nil {
			return nil, err
		}
		if o.ID() != id {
			return nil, &MalformedError{Key: key + " " + clip(id), Msg: "it is the outcome of " + o.ID()}
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b Outcome) int {
		return cmp.Or(cmp.Compare(a.Query, b.Query), cmp.Compare(a.Rollout, b.Rollout))
	})
	return out, nil
}

// PublishTrajectories publishes, once, the ids of the trajectories of a phase that the member's agent can train on. The
// order of ids does not matter.
func (ps *Phases) PublishTrajectories(ctx context.Context, p Phase, ids []string) error {
	defer failpoint.Around("agree.trajectories")()
	sorted := append(idList{}, ids...)
	slices.Sort(sorted)
	return publish(ctx, ps.at, trajectoriesValue, p, &sorted)
}

// Trajectories waits until every agent has published its trajectories of a phase. It maps agents to sorted ids.
func (ps *Phases) Trajectories(ctx context.Context, p Phase) (map[string][]string, error) {
	return gatherPhase(ctx, ps.at.Store, trajectoriesValue, p, func(key, text string) ([]string, error) { return decode[idList](key, text) })
}

// idList is the encoded form of the ids of trajectories.
type idList []string

func (l *idList) check() error {
	for i, id := range *l {
		if id == "" || len(id) > maxID+128 {
			return fmt.Errorf("id %d has %d bytes", i, len(id))
		}
	}
	return nil
}
