package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

// CallPolicy configures how a call is made.
type CallPolicy struct {
	Timeout time.Duration // for one attempt; 0: no limit
	Retries int           // further attempts after a time-out or a temporary error, such as a busy server
	Gate    *Gate         // limits attempts, together with the other tools of the same server; nil: no limit
	Secrets []string      // texts, such as API keys, that are replaced in outputs and errors
	Retried func()        // called before each further attempt, if set
}

// Gate limits the number of concurrent attempts, and the number of attempts per second.
type Gate struct {
	slots chan struct{} // holds one for each attempt in flight; nil: any number
	rate  float64       // attempts begun per second; 0: any number

	first chan struct{} // has one slot, held by the first of the attempts that wait because of the rate
	next  time.Time     // time when the next attempt may begin; guarded by first
}

// NewGate returns a gate; 0 means any number.
func NewGate(parallel int, rate float64) *Gate {
	g := &Gate{rate: rate, first: make(chan struct{}, 1)}
	if parallel > 0 {
		g.slots = make(chan struct{}, parallel)
	}
	return g
}

// WithCallPolicy wraps a tool. It waits for the gate, enforces the time-out, repeats temporary failures, replaces secrets,
// and turns a panic into an error of the call.
func WithCallPolicy(t Tool, a CallPolicy) Tool {
	if a.Gate == nil {
		a.Gate = NewGate(0, 0)
	}
	return &retryingTool{Tool: t, policy: a, wait: retry.Sleep}
}

type retryingTool struct {
	Tool
	policy CallPolicy
	wait   func(context.Context, time.Duration) error
}

func (t *retryingTool) Call(ctx context.Context, args json.RawMessage) (string, error) {
	tries := 0
	out, err := retry.Do(ctx, t.policy.Retries, t.wait, func() (string, error) {
		if tries++; tries > 1 && t.policy.Retried != nil {
			t.policy.Retried()
		}
		return t.attempt(ctx, args)
	})
	if err != nil {
		_, kind := kindOf(err)
		return "", &callError{Redact(err.Error(), t.policy.Secrets), kind}
	}
	return Redact(out, t.policy.Secrets), nil
}

// attempt makes one attempt once the gate allows it. A time-out is transient.
func (t *retryingTool) attempt(ctx context.Context, args json.RawMessage) (out string, err error) {
	gate := t.policy.Gate
	if gate.slots != nil {
		select {
		case gate.slots <- struct{}{}:
			defer func() { <-gate.slots }()
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	if err := gate.turn(ctx, t.wait); err != nil {
		return "", err
	}
	if t.policy.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t.policy.Timeout, ErrTimeout)
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			out, err = "", Failed(fmt.Errorf("%s crashed: %v", t.Name(), p))
		}
		if err != nil && errors.Is(context.Cause(ctx), ErrTimeout) {
			out, err = "", &retry.Transient{Err: &callError{fmt.Sprintf("%s took longer than %v", t.Name(), t.policy.Timeout), ErrTimeout}}
		}
	}()
	return t.Tool.Call(ctx, args)
}

// turn waits until an attempt may begin. Waiting attempts form a queue. A cancelled attempt does not count towards the
// rate.
func (g *Gate) turn(ctx context.Context, wait func(context.Context, time.Duration) error) error {
	if g.rate <= 0 {
		return nil
	}
	select {
	case g.first <- struct{}{}:
		defer func() { <-g.first }()
	case <-ctx.Done():
		return ctx.Err()
	}
	now := time.Now()
	if g.next.Before(now) {
		g.next = now
	}
	if pause := g.next.Sub(now); pause > 0 {
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
	g.next = g.next.Add(time.Duration(float64(time.Second) / g.rate))
	return nil
}
