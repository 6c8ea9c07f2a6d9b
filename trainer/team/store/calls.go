package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// submit sends an invocation to its agent and reports whether it is new, which means that it does not have an answer yet.
// Submitting the same invocation again has no effect. If the id was used for another task, the error is a ConflictError.
func (m *Member) submit(ctx context.Context, v Invocation) (isNew bool, err error) {
	defer failpoint.Around("rollout.call")()
	p := v.Phase.String()
	what := "invocation " + v.ID() + " of " + p
	value, err := written(what, &v)
	if err != nil {
		return false, err
	}
	reply, err := m.write(ctx, submitScript, what,
		values{"events": m.key("events", v.Agent), "hash": m.key("call", p), "phases": m.key("phases"), "stream": m.key("stream", p, v.Agent),
			"field": v.ID(), "value": value, "topic": "call/" + p + "/" + v.Agent, "phase": p, "step": v.Phase.Step})
	return word(reply, 0) == "new", err
}

// Call submits an invocation and waits for its answer.
func (m *Member) Call(ctx context.Context, v Invocation) (Result, error) {
	wake, unsubscribe := m.topics.subscribe(answerTopic(v))
	defer unsubscribe()
	isNew, err := m.submit(ctx, v)
	if err != nil {
		return Result{}, err
	}
	return m.await(ctx, v, wake, isNew)
}

func answerTopic(v Invocation) string { return "result/" + v.Phase.String() + "/" + v.ID() }

// await waits for an answer. With noneYet it reads nothing until the answer's topic is published.
func (s *Store) await(ctx context.Context, v Invocation, wake <-chan struct{}, noneYet bool) (r Result, err error) {
	key, id := s.key("result", v.Phase.String()), v.ID()
	err = s.waitFor(ctx, wake, func(ctx context.Context) (bool, error) {
		if noneYet {
			noneYet = false
			return false, nil
		}
		c := redis.NewStringCmd(ctx, "hget", key, id)
		err := s.batches.do(ctx, c)
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		r, err = decode[Result](key+" "+id, c.Val())
		return err == nil, err
	}, func() ([]string, string) {
		return []string{v.Agent}, "the answer to " + id + " of " + v.Phase.String()
	})
	return r, err
}

// Complete publishes the answer to a claimed invocation and ends the claim. The first answer is kept: a ConflictError means
// that the invocation already has another answer, and the caller must not train on the trajectory of this one.
func (m *Member) Complete(ctx context.Context, v Invocation, r Result) error {
	defer failpoint.Around("rollout.answer")()
	p := v.Phase.String()
	what := "the answer to " + v.ID() + " of " + p
	value, err := written(what, &r, &v)
	if err != nil {
		return err
	}
	_, err = m.write(ctx, completeScript, what,
		values{"events": m.key("events", m.allAgents()[0]), "results": m.key("result", p), "claimed": m.key("claimed", m.agent),
			"id": v.ID(), "value": value, "topic": answerTopic(v), "phase": p})
	return err
}
