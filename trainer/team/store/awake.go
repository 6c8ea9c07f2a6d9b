package store

import (
	"context"
	"sync"
	"time"
)

// awake measures how long this process or its machine was suspended. Waits do not count that time: the other agents may have been
// suspended, too, and this process could not have noticed their answers.
type awake struct {
	mu   sync.Mutex
	last time.Time     // when this process was last seen running
	lost time.Duration // time that it did not run, since the beginning
}

// awakeTick is the interval at which the process is seen running.
const awakeTick = time.Second

// watch detects times in which the process does not run, until ctx ends.
func (a *awake) watch(ctx context.Context) {
	tick := time.NewTicker(awakeTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.lostTime()
		}
	}
}

// lostTime returns the time that the process did not run, up to now.
func (a *awake) lostTime() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if gap := now.Sub(a.last); !a.last.IsZero() && gap > 3*awakeTick {
		a.lost += gap - awakeTick
	}
	a.last = now
	return a.lost
}

// patience is a context that ends with context.DeadlineExceeded when this process has run for a given time.
type patience struct {
	context.Context // ends with patience

	mu       sync.Mutex
	deadline time.Time // as it is known so far
}

// withTimeout returns a context that ends after the store's timeout. The caller must call cancel.
func (s *Store) withTimeout(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	p := &patience{Context: ctx, deadline: time.Now().Add(s.opt.Timeout)}
	before := s.messages.awake.lostTime()
	p.mu.Lock()
	defer p.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(s.opt.Timeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		lost := s.messages.awake.lostTime()
		if lost == before {
			end(context.DeadlineExceeded)
			return
		}
		p.deadline = time.Now().Add(lost - before)
		timer.Reset(lost - before)
		before = lost
	})
	return p, func() { timer.Stop(); end(nil) }
}

// Deadline returns the time at which the context ends if the process does not stop running.
func (p *patience) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if parent, has := p.Context.Deadline(); has && parent.Before(p.deadline) {
		return parent, true
	}
	return p.deadline, true
}

// Err returns the reason why the context has ended, or nil.
func (p *patience) Err() error {
	if err := p.Context.Err(); err == nil || context.Cause(p.Context) != context.DeadlineExceeded {
		return err
	}
	return context.DeadlineExceeded
}
