package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Invocations exchanges calls of sub-agents and their answers. Each agent's invocations of a phase form a queue.
type Invocations struct {
	at     *place
	queues queues // positions in the streams of invocations
}

// submit sends an invocation to its agent and reports whether it is new, which means that it does not have an answer yet.
// Submitting the same invocation again has no effect. If the id was used for another task, the error is a ConflictError.
func (in *Invocations) submit(ctx context.Context, v Invocation) (isNew bool, err error) {
	defer failpoint.Around("rollout.call")()
	p := v.Phase.String()
	what := "invocation " + v.ID() + " of " + p
	value, err := checkAndEncode(what, &v)
	if err != nil {
		return false, err
	}
	reply, err := in.at.write(ctx, submitScript, what,
		values{"events": in.at.key("events", v.Agent), "hash": in.at.key("call", p), "phases": in.at.key("phases"), "stream": in.at.key("stream", p, v.Agent),
			"field": v.ID(), "value": value, "topic": "call/" + p + "/" + v.Agent, "phase": p, "step": v.Phase.Step})
	return replyText(reply, 0) == "new", err
}

// Call submits an invocation and waits for its answer.
func (in *Invocations) Call(ctx context.Context, v Invocation) (Result, error) {
	wake, unsubscribe := in.at.topics.subscribe(answerTopic(v))
	defer unsubscribe()
	isNew, err := in.submit(ctx, v)
	if err != nil {
		return Result{}, err
	}
	return in.await(ctx, v, wake, isNew)
}

func answerTopic(v Invocation) string { return "result/" + v.Phase.String() + "/" + v.ID() }

// await waits for an answer. With noneYet it skips the first read, because a new invocation has no answer yet.
func (in *Invocations) await(ctx context.Context, v Invocation, wake <-chan struct{}, noneYet bool) (r Result, err error) {
	key, id := in.at.key("result", v.Phase.String()), v.ID()
	err = in.at.waitFor(ctx, wake, func(ctx context.Context) (bool, error) {
		if noneYet {
			noneYet = false
			return false, nil
		}
		c := redis.NewStringCmd(ctx, "hget", key, id)
		err := in.at.batches.do(ctx, c)
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
func (in *Invocations) Complete(ctx context.Context, v Invocation, r Result) error {
	defer failpoint.Around("rollout.answer")()
	p := v.Phase.String()
	what := "the answer to " + v.ID() + " of " + p
	value, err := checkAndEncode(what, &r, &v)
	if err != nil {
		return err
	}
	_, err = in.at.write(ctx, completeScript, what,
		values{"events": in.at.key("events", in.at.agents.all()[0]), "results": in.at.key("result", p), "claimed": in.at.key("claimed", in.at.agent),
			"id": v.ID(), "value": value, "topic": answerTopic(v), "phase": p})
	return err
}
