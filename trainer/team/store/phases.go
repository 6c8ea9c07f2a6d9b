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

// mainAgent returns a list with only the main agent, the first of JoinRequest.Agents. It begins and ends phases.
func (s *Store) mainAgent() []string {
	all := s.allAgents()
	return all[:min(1, len(all))]
}

func (s *Store) allAgents() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents
}

// writeOnce writes a value of a phase that is never changed, and publishes the topic of its kind.
func (m *Member) writeOnce(ctx context.Context, p Phase, kind, field string, v checked, what string) error {
	what += " of " + p.String()
	value, err := written(what, v, &p)
	if err != nil {
		return err
	}
	_, err = m.write(ctx, writeScript, what, values{
		"events": m.key("events"), "hash": m.key(kind, p.String()), "phases": m.key("phases"),
		"field": field, "value": value, "topic": kind + "/" + p.String(), "phase": p.String(), "step": p.Step})
	return err
}

// Begin publishes the plan of a phase.
func (m *Member) Begin(ctx context.Context, p Phase, plan Plan) error {
	defer failpoint.Around("rollout.begin")()
	return m.writeOnce(ctx, p, "plan", "plan", &plan, "the plan")
}

// Plan waits until a phase has begun, and returns its plan.
func (s *Store) Plan(ctx context.Context, p Phase) (Plan, error) {
	var plan Plan
	key := s.key("plan", p.String())
	err := s.wait(ctx, func(ctx context.Context) (bool, error) {
		text, err := s.rdb.HGet(ctx, key, "plan").Result()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		plan, err = decode[Plan](key, text)
		return err == nil, err
	}, func() ([]string, string) { return s.mainAgent(), "the beginning of " + p.String() }, "plan/"+p.String())
	return plan, err
}

// PublishFinalPlan publishes the final plan of a phase, before the phase ends: some queries may have been replaced by others.
func (m *Member) PublishFinalPlan(ctx context.Context, p Phase, plan Plan) error {
	return m.writeOnce(ctx, p, "plan", "settled", &plan, "the final plan")
}

// FinalPlan returns the final plan of a phase that has ended. It returns an error if there is none.
func (s *Store) FinalPlan(ctx context.Context, p Phase) (Plan, error) {
	key := s.key("plan", p.String())
	text, err := s.rdb.HGet(ctx, key, "settled").Result()
	if errors.Is(err, redis.Nil) {
		return Plan{}, &MalformedError{Key: key, Msg: "the phase has ended, but its final plan is missing: do all workers have the same configuration?"}
	}
	if err != nil {
		return Plan{}, fmt.Errorf("store: final plan of %s: %w", p, err)
	}
	return decode[Plan](key, text)
}

// End publishes that all rollouts of a phase have ended. Claim then returns ErrEnded to every worker once all invocations
// are claimed.
func (m *Member) End(ctx context.Context, p Phase) error {
	defer failpoint.Around("rollout.end")()
	return m.writeOnce(ctx, p, "plan", "ended", new(ended(true)), "the end")
}

// PublishOutcome publishes the outcome of a rollout, once.
func (m *Member) PublishOutcome(ctx context.Context, p Phase, o Outcome) error {
	defer failpoint.Around("rollout.outcome")()
	return m.writeOnce(ctx, p, "outcome", o.ID(), &o, "outcome "+o.ID())
}

// Outcomes waits until a phase has n outcomes, and returns them in the order of query ids and rollouts.
func (s *Store) Outcomes(ctx context.Context, p Phase, n int) ([]Outcome, error) {
	var there int64
	var out []Outcome
	key := s.key("outcome", p.String())
	err := s.wait(ctx, func(ctx context.Context) (bool, error) {
		var err error
		if there, err = s.rdb.HLen(ctx, key).Result(); err != nil || there < int64(n) {
			return false, err
		}
		out, err = s.readOutcomes(ctx, key)
		return err == nil, err
	}, func() ([]string, string) {
		return s.mainAgent(), fmt.Sprintf("the outcomes of %s, %d of %d are there", p, there, n)
	}, "outcome/"+p.String())
	if err != nil {
		return nil, err
	}
	if len(out) != n {
		return nil, &MalformedError{Key: key, Msg: fmt.Sprintf("%d outcomes where %d were expected", len(out), n)}
	}
	return out, nil
}

func (s *Store) readOutcomes(ctx context.Context, key string) ([]Outcome, error) {
	texts, err := s.rdb.HGetAll(ctx, key).Result()
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
