package store

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/redis/go-redis/v9"
)

// maxDeliveries is how often an invocation is handed out before its worker is taken to be killed by
// it.
const maxDeliveries = 5

func (m *Member) consumer() string { return m.agent + ":" + m.epochText() }

// Submit hands an invocation to its agent. The same one may be submitted again; another task under
// the same id is a ConflictError.
func (m *Member) Submit(ctx context.Context, v Invocation) error {
	if err := v.check(); err != nil {
		return fmt.Errorf("store: invocation %s: %w", v.ID(), err)
	}
	value, err := encode(v)
	if err != nil {
		return fmt.Errorf("store: invocation %s: %w", v.ID(), err)
	}
	p := v.Phase.String()
	_, err = m.run(ctx, submitScript, "invocation "+v.ID()+" of "+p,
		[]string{m.key("events"), m.key("call", p), m.key("phases"), m.key("stream", p, v.Agent)},
		v.ID(), value, "call/"+p+"/"+v.Agent, p, v.Phase.Step)
	return err
}

// Await waits for an invocation's answer. Any number of goroutines may wait.
func (s *Store) Await(ctx context.Context, v Invocation) (Result, error) {
	var r Result
	key, id := s.key("result", v.Phase.String()), v.ID()
	err := s.wait(ctx, func(ctx context.Context) (bool, error) {
		text, err := s.rdb.HGet(ctx, key, id).Result()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		r, err = decode[Result](key+" "+id, text)
		return err == nil, err
	}, func() ([]string, string) {
		return []string{v.Agent}, "the answer to " + id + " of " + v.Phase.String()
	}, "result/"+v.Phase.String()+"/"+id)
	return r, err
}

// Claim waits for an invocation of the member's agent in a phase: one whose worker was lost, or a new
// one. It is the member's until Complete; a worker may have any number at a time. ErrEnded says that
// the phase has ended and that nothing of it is wanted any more.
//
// One goroutine should claim and start another for each invocation: every waiting claim asks the
// server when an invocation arrives.
func (m *Member) Claim(ctx context.Context, p Phase) (Invocation, error) {
	if err := p.check(); err != nil {
		return Invocation{}, fmt.Errorf("store: %w", err)
	}
	var v Invocation
	err := m.wait(ctx, func(ctx context.Context) (bool, error) {
		for {
			found, again, err := m.tryClaim(ctx, p, &v)
			if !again || err != nil {
				return found, err
			}
		}
	}, func() ([]string, string) {
		return m.mainAgent(), "an invocation of " + m.agent + " in " + p.String() + ", or the phase's end"
	}, "call/"+p.String()+"/"+m.agent, "plan/"+p.String())
	return v, err
}

// tryClaim asks for an invocation once. again says that it came upon one that is not to be handed
// out, so that there may be more.
func (m *Member) tryClaim(ctx context.Context, p Phase, v *Invocation) (found, again bool, err error) {
	stream := m.key("stream", p.String(), m.agent)
	reply, err := m.run(ctx, claimScript, "a claim in "+p.String(), []string{m.key("plan", p.String()), stream}, m.consumer(), m.opts.Lease.Milliseconds())
	if err != nil {
		return false, false, err
	}
	switch word(reply, 0) {
	case "ended":
		m.forget(func(c claim) bool { return c.stream == stream })
		return false, false, ErrEnded
	case "none":
		return false, false, nil
	}
	entry := word(reply, 1)
	*v, err = decode[Invocation](stream+" "+entry, word(reply, 2))
	if err != nil {
		return false, false, err
	}
	if v.Agent != m.agent || v.Phase != p {
		return false, false, &MalformedError{Key: stream + " " + entry, Msg: "it belongs to " + v.Agent + " in " + v.Phase.String()}
	}
	v.entry = entry
	if len(reply) > 3 {
		v.Delivery, _ = reply[3].(int64)
	}
	m.mu.Lock()
	_, mine := m.inFlight[entry]
	if !mine {
		m.inFlight[entry] = claim{stream, v.Delivery}
	}
	m.mu.Unlock()
	if mine {
		return false, true, nil // this worker was silent for a lease, but it is at work on it
	}
	if v.Delivery > maxDeliveries {
		failed := fmt.Sprintf("given up after %d workers of %s were lost over it", v.Delivery-1, m.agent)
		return false, true, m.Complete(ctx, *v, Result{Failed: failed})
	}
	return true, false, nil
}

// Complete publishes the answer to a claimed invocation and ends the claim. The first answer stands:
// a ConflictError says that there was another, and what led to this one must not be trained on.
func (m *Member) Complete(ctx context.Context, v Invocation, r Result) error {
	if err := errors.Join(v.check(), r.check()); err != nil {
		return fmt.Errorf("store: the answer to %s: %w", v.ID(), err)
	}
	value, err := encode(r)
	if err != nil {
		return fmt.Errorf("store: the answer to %s: %w", v.ID(), err)
	}
	p := v.Phase.String()
	_, err = m.run(ctx, completeScript, "the answer to "+v.ID()+" of "+p,
		[]string{m.key("events"), m.key("result", p), m.key("stream", p, v.Agent)},
		v.ID(), value, "result/"+p+"/"+v.ID(), v.entry)
	var conflict *ConflictError
	if err == nil || errors.As(err, &conflict) {
		m.mu.Lock()
		delete(m.inFlight, v.entry)
		m.mu.Unlock()
	}
	return err
}

// claim is what is remembered of an invocation that is being worked on.
type claim struct {
	stream   string
	delivery int64
}

// renewClaims tells the server that the claimed invocations are being worked on. The count of
// deliveries is given with each, because the embedded server would count a renewal as one.
func (m *Member) renewClaims(ctx context.Context) {
	m.mu.Lock()
	groups := map[claim][]any{}
	for entry, c := range m.inFlight {
		groups[c] = append(groups[c], entry)
	}
	m.mu.Unlock()
	for c, entries := range groups {
		args := append([]any{"XCLAIM", c.stream, "workers", m.consumer(), 0}, entries...)
		err := m.rdb.Do(ctx, append(args, "RETRYCOUNT", c.delivery, "JUSTID")...).Err()
		if err != nil && ctx.Err() == nil && !transient(err) { // the stream is gone: its phase has been trimmed
			m.forget(func(claimed claim) bool { return claimed.stream == c.stream })
		}
	}
}

// forget gives up claims that nobody will ask for any more.
func (m *Member) forget(these func(claim) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.inFlight, func(_ string, c claim) bool { return these(c) })
}
