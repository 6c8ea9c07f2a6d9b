// Package measure times several implementations of one piece of work beside each other: in turns, on the same
// inputs, with hot and cold caches, against ceilings of the machine measured in the same run, and with the error of
// each against float64. Results are JSON files under bench/results and a table.
package measure

import (
	"context"
	"errors"
)

// Provider is one implementation of a case, ready to run: its inputs are made and its code is compiled.
type Provider interface {
	// Run does the work repeat times and returns how long each took. With Hot it first does it once untimed; with
	// Cold it evicts the caches before each.
	Run(ctx context.Context, repeat int, cache Cache) (Samples, error)
	// Check does the work and returns its largest error against float64: the largest difference of an output over
	// that output's largest expected value.
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

// Samples are the seconds of some runs.
type Samples struct {
	Seconds        []float64
	PeakExtraBytes int64 // by how much resident memory grew at most during a run with a cold cache; 0: not at all, or not known
}

// Setup is a provider's version and settings, as it reports them.
type Setup struct {
	Version  string         `json:"version"`
	Settings map[string]any `json:"settings,omitempty"`
}

// Opener makes a provider ready. Its error stands in the row as the reason why there are no numbers.
type Opener struct {
	Name string
	Open func(ctx context.Context) (Provider, Setup, error)
}

// Native is a provider in this process. Around calls f where the work has to run, such as inside a device's Do, and
// Clock is asked for there; nil: this process's.
type Native struct {
	Around func(ctx context.Context, f func() error) error
	Clock  func() (Clock, error)
	Reset  func() // before each run, untimed: puts back what a run overwrites; may be nil
	Work   func() error
	Error  func() (float64, error) // after a run: its error against float64
	Done   func() error            // may be nil
}

func (n *Native) Run(ctx context.Context, repeat int, cache Cache) (s Samples, err error) {
	err = n.timed(ctx, func(clock Clock) error {
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
	return s, err
}

// timed calls f with a clock, around it what Around does.
func (n *Native) timed(ctx context.Context, f func(Clock) error) error {
	return n.Around(ctx, func() (err error) {
		var clock Clock = processor{}
		if n.Clock != nil {
			if clock, err = n.Clock(); err != nil {
				return err
			}
		}
		return errors.Join(f(clock), clock.Close())
	})
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

func (n *Native) Close() error {
	if n.Done == nil {
		return nil
	}
	return n.Done()
}
