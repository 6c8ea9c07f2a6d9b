// Package measure times several implementations of the same work in turns, on the same inputs, with hot and cold caches. It compares them
// with ceilings of the machine that are measured in the same run, and reports the error of each against float64. Results are JSON files
// under bench/results and a table.
package measure

import (
	"context"
	"errors"
)

// Provider is one implementation of a case, with inputs made and code compiled.
type Provider interface {
	// Run does the work repeat times and returns the duration of each. With Hot it first does the work once untimed. With Cold
	// it evicts the caches before each.
	Run(ctx context.Context, repeat int, cache Cache) (Samples, error)
	// Check does the work and returns its largest error against float64: the largest difference in an output, divided by the
	// output's largest expected value.
	Check(ctx context.Context) (float64, error)
	Close() error
}

// Cache is the state in which a sample begins.
type Cache string

// Hot leaves the inputs where the last run left them, Cold evicts them.
const (
	Hot  Cache = "hot"
	Cold Cache = "cold"
)

// Samples holds the seconds of some runs.
type Samples struct {
	Seconds        []float64
	PeakExtraBytes int64 // peak growth of resident memory during a run with a cold cache; 0: none, or unknown
}

// Setup is a provider's version and settings, as it reports them.
type Setup struct {
	Version  string         `json:"version"`
	Settings map[string]any `json:"settings,omitempty"`
}

// Opener opens a provider. If it fails, the row has its error instead of numbers.
type Opener struct {
	Name string
	Open func(ctx context.Context) (Provider, Setup, error)
}

// Native is a provider in this process. Around calls f in the work's context, such as inside a device's Do; Clock is called there, too.
// A nil Around only calls f. A nil Clock is the clock of this process's threads.
type Native struct {
	Around func(ctx context.Context, f func() error) error
	Clock  func() (Clock, error)
	Reset  func() // before each run, untimed: restores values that a run overwrites; may be nil
	Work   func() error
	Error  func() (float64, error) // after a run: returns its error against float64
	Done   func() error            // may be nil

	// Memory calls run, which takes samples, and returns the provider's memory in bytes. If it is nil, the clock measures the memory.
	Memory func(ctx context.Context, run func() error) (int64, error)
}

// Run takes `repeat` samples with the given state of the cache. An error of the work ends it.
func (n *Native) Run(ctx context.Context, repeat int, cache Cache) (s Samples, err error) {
	if n.Memory == nil {
		err = n.take(ctx, repeat, cache, &s)
		return s, err
	}
	s.PeakExtraBytes, err = n.Memory(ctx, func() error { return n.take(ctx, repeat, cache, &s) })
	return s, err
}

func (n *Native) take(ctx context.Context, repeat int, cache Cache, s *Samples) error {
	return n.timed(ctx, func(clock Clock) error {
		if cache == Hot {
			if _, err := n.once(clock, Hot); err != nil {
				return err
			}
		}
		for range repeat {
			d, err := n.once(clock, cache)
			if err != nil {
				return err
			}
			s.Seconds = append(s.Seconds, d.seconds)
			s.PeakExtraBytes = max(s.PeakExtraBytes, d.grown)
		}
		return nil
	})
}

// timed calls f with a clock, inside Around.
func (n *Native) timed(ctx context.Context, f func(Clock) error) error {
	run := func() (err error) {
		var clock Clock = processor{}
		if n.Clock != nil {
			if clock, err = n.Clock(); err != nil {
				return err
			}
		}
		return errors.Join(f(clock), clock.Close())
	}
	if n.Around == nil {
		return run()
	}
	return n.Around(ctx, run)
}

func (n *Native) once(clock Clock, cache Cache) (timing, error) {
	if n.Reset != nil {
		n.Reset()
	}
	if cache == Cold {
		clock.Evict()
	}
	return clock.Time(cache, n.Work)
}

// Check returns the largest error of any output against float64, over that output's largest value.
func (n *Native) Check(ctx context.Context) (worst float64, err error) {
	err = n.timed(ctx, func(clock Clock) error {
		if _, err := n.once(clock, Hot); err != nil {
			return err
		}
		var err error
		worst, err = n.Error()
		return err
	})
	return worst, err
}

// Close frees what the work holds.
func (n *Native) Close() error {
	if n.Done == nil {
		return nil
	}
	return n.Done()
}
