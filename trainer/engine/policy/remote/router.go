package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// choose picks the server of a turn. It avoids lost servers while there are others. The caller calls endTurn when the
// turn has ended.
func (p *Policy) choose(k policy.Key) *replica {
	return p.replicas[p.router.Enter(k, func(i int) bool { return !p.replicas[i].lost.Load() })]
}

// endTurn records the end of a turn at a server.
func (p *Policy) endTurn(r *replica) { p.router.Leave(slices.Index(p.replicas, r)) }

// anyAvailable reports whether any server is not lost.
func (p *Policy) anyAvailable() bool {
	return slices.ContainsFunc(p.replicas, func(r *replica) bool { return !r.lost.Load() })
}

// loadWeights makes a server load the current weights once its turns in flight have ended, and checks them. If several callers
// find that a server is lost, one of them does this, and the others wait for it.
func (p *Policy) loadWeights(ctx context.Context, r *replica) error {
	if err := r.gate.Acquire(ctx, gateCapacity); err != nil {
		return r.interrupted(ctx, errors.New("it is loading weights"))
	}
	defer r.gate.Release(gateCapacity)
	w, lost := p.currentCopy(), r.lost.Load()
	switch {
	case w == nil:
		return errors.New("policy: the engine does not have weights: call UpdateWeights first")
	case r.weights != nil && r.weights.stamp == w.stamp && !lost:
		r.weights = w
		return nil
	}
	err := p.retryWhileAway(ctx, r, func(ctx context.Context) error {
		if _, err := r.api.inspect(ctx); err != nil { // it may be another server by now
			return err
		}
		if !lost {
			if err := r.checkOwner(ctx); err != nil {
				return err
			}
		}
		r.stamps = append(r.stamps, w.stamp)
		if err := r.api.load(ctx, w.folder, w.stamp); err != nil {
			return err
		}
		gap, err := p.verifyWeights(ctx, r, w)
		if err == nil && lost {
			p.opt.Note(fmt.Sprintf("the engine at %s has version %d: the log-probs of its tokens differ from the trainer's by %.2g nats on average", r.url,
				w.version, gap))
		}
		return err
	})
	if err == nil {
		r.weights, r.stamps = w, []string{w.stamp}
		r.lost.Store(false)
	}
	return err
}

// UnreachableError reports a server that did not come back in time. Only the turns in flight are lost.
type UnreachableError struct {
	URL  string
	Time string // time that it had to come back
	Why  string // reason why it is unusable
}

func (a *UnreachableError) Error() string {
	return fmt.Sprintf("the engine at %s did not come back within %s (%s): restart it", a.URL, a.Time, a.Why)
}

const retryInterval = time.Second

// retryWhileAway calls do, which needs a server, repeatedly while the server is away.
func (p *Policy) retryWhileAway(parent context.Context, r *replica, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, p.opt.Patience)
	defer cancel()
	for waited := false; ; waited = true {
		err := do(ctx)
		var lost *lostError
		away := errors.As(err, &lost)
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil && !away:
			return fmt.Errorf("the engine at %s: %w", r.url, err)
		case away && !waited:
			r.lost.Store(true)
			p.opt.Note(fmt.Sprintf("waits for the engine at %s, at most %s: %v", r.url, p.opt.Patience, err))
		}
		select {
		case <-time.After(retryInterval):
			continue
		case <-ctx.Done():
		}
		if parent.Err() == nil {
			return &UnreachableError{r.url, fmt.Sprintf("store.timeout, %s", p.opt.Patience), err.Error()}
		}
		return r.interrupted(parent, err)
	}
}

// interrupted returns the error of a wait for a server that ended with the caller's context. If a conversation ran out of
// time because its server was away, the error is not a time-out: the conversation must not count as too slow.
func (r *replica) interrupted(ctx context.Context, err error) error {
	if r.lost.Load() && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &UnreachableError{r.url, "the conversation's limits.wall_time", err.Error()}
	}
	return context.Cause(ctx)
}
