package archive

import (
	"context"
	"sync"
	"time"
)

// saving is what goes on beside the steps to have a checkpoint on disk: one job after the other. After a job
// that failed there are no others.
type saving struct {
	last *job // nil: there was none

	mu     sync.Mutex
	took   float64 // seconds from the copy to the checkpoint's completion, of those completed since the last record
	waited float64 // seconds that steps waited for checkpoints since then
}

type job struct {
	done chan struct{}
	err  error // when done is closed
}

// begin runs a job when the one before has ended.
func (s *saving) begin(f func() error) {
	before, j := s.last, &job{done: make(chan struct{})}
	s.last = j
	go func() {
		defer close(j.done)
		if before != nil {
			<-before.done
			if j.err = before.err; j.err != nil {
				return
			}
		}
		j.err = f()
	}()
}

// settle waits until nothing is in flight.
func (s *saving) settle(ctx context.Context) error {
	if s.last == nil {
		return nil
	}
	select {
	case <-s.last.done:
		return s.last.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// failed is the error of what has ended already.
func (s *saving) failed() error {
	if s.last == nil {
		return nil
	}
	select {
	case <-s.last.done:
		return s.last.err
	default:
		return nil
	}
}

// drain waits until nothing is in flight, whatever became of it.
func (s *saving) drain() {
	if s.last != nil {
		<-s.last.done
	}
}

func (s *saving) count(seconds *float64, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*seconds += time.Since(since).Seconds()
}

// describe puts the times of what was completed since the last record into it.
func (s *saving) describe(values map[string]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, seconds := range map[string]*float64{"checkpoint_seconds": &s.took, "checkpoint_wait_seconds": &s.waited} {
		if *seconds > 0 {
			values[name] = *seconds
		}
		*seconds = 0
	}
}
