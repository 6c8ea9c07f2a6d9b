package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/failpoint"
)

// Submit hands an invocation to its agent. The same one may be submitted again; another task under
// the same id is a ConflictError.
func (m *Member) Submit(ctx context.Context, v Invocation) error {
	defer failpoint.Around("rollout.call")()
	if err := v.check(); err != nil {
		return fmt.Errorf("store: invocation %s: %w", v.ID(), err)
	}
	value, err := encode(v)
	if err != nil {
		return fmt.Errorf("store: invocation %s: %w", v.ID(), err)
	}
	p := v.Phase.String()
	_, err = m.run(ctx, submitScript, "invocation "+v.ID()+" of "+p,
		[]string{m.key("events", v.Agent), m.key("call", p), m.key("phases"), m.key("stream", p, v.Agent)},
		v.ID(), value, "call/"+p+"/"+v.Agent, p, v.Phase.Step)
	return err
}

// Await waits for an invocation's answer. Any number of goroutines may wait.
func (s *Store) Await(ctx context.Context, v Invocation) (Result, error) {
	var r Result
	key, id := s.key("result", v.Phase.String()), v.ID()
	err := s.wait(ctx, func(ctx context.Context) (bool, error) {
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
	}, "result/"+v.Phase.String()+"/"+id)
	return r, err
}

// Complete publishes the answer to a claimed invocation and ends the claim. The first answer stands:
// a ConflictError says that there was another, and what led to this one must not be trained on.
func (m *Member) Complete(ctx context.Context, v Invocation, r Result) error {
	defer failpoint.Around("rollout.answer")()
	if err := errors.Join(v.check(), r.check()); err != nil {
		return fmt.Errorf("store: the answer to %s: %w", v.ID(), err)
	}
	value, err := encode(r)
	if err != nil {
		return fmt.Errorf("store: the answer to %s: %w", v.ID(), err)
	}
	p := v.Phase.String()
	_, err = m.run(ctx, completeScript, "the answer to "+v.ID()+" of "+p,
		[]string{m.key("events", m.allAgents()[0]), m.key("result", p), m.key("claimed", m.agent)}, v.ID(), value, "result/"+p+"/"+v.ID(), p)
	return err
}
