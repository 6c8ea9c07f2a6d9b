package store

import (
	"context"
	"sync"
	"time"
)

// suspension measures how long this process or its machine was suspended. Waits do not count that time: the other agents may have been
// suspended, too, and this process could not have noticed their answers.
type suspension struct {
	mu   sync.Mutex
	last time.Time     // when this process was last seen running
	lost time.Duration // time that it did not run, since the beginning
}

// suspensionTick is the interval at which the process is seen running.
const suspensionTick = time.Second

// watch detects times in which the process does not run, until ctx ends.
func (s *suspension) watch(ctx context.Context) {
	tick := time.NewTicker(suspensionTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.total()
		}
	}
}

// total returns the time that the process did not run, up to now.
func (s *suspension) total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if gap := now.Sub(s.last); !s.last.IsZero() && gap > 3*suspensionTick {
		s.lost += gap - suspensionTick
	}
	s.last = now
	return s.lost
}

// timeoutContext is a context that ends with context.DeadlineExceeded when this process has run for a given time.
type timeoutContext struct {
	context.Context // ends with the timeout

	mu       sync.Mutex
	deadline time.Time // as it is known so far
}

// withTimeout returns a context that ends after the store's timeout. The caller must call cancel.
func (s *Store) withTimeout(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	p := &timeoutContext{Context: ctx, deadline: time.Now().Add(s.opt.Timeout)}
	before := s.waits.suspension.total()
	p.mu.Lock()
	defer p.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(s.opt.Timeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		lost := s.waits.suspension.total()
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
func (p *timeoutContext) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if parent, has := p.Context.Deadline(); has && parent.Before(p.deadline) {
		return parent, true
	}
	return p.deadline, true
}

// Err returns the reason why the context has ended, or nil.
func (p *timeoutContext) Err() error {
	if err := p.Context.Err(); err == nil || context.Cause(p.Context) != context.DeadlineExceeded {
		return err
	}
	return context.DeadlineExceeded
}
