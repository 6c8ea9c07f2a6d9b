package learner

import "math"

// Decay is the shape of a falling learning rate.
type Decay string

// The shapes of a decay.
const (
	ConstantRate Decay = "constant" // the rate does not fall
	LinearDecay  Decay = "linear"
	CosineDecay  Decay = "cosine"
)

// RateSchedule is the learning rate as a function of the step: a linear warm-up, a plateau, then a decay to Floor × LR at
// step Total. After that the rate stays the same.
type RateSchedule struct {
	LR     float64
	Warmup int64 // steps of linear rise: step s < Warmup has LR·(s+1)/Warmup
	Decay  Decay
	Hold   float64 // fraction of Total at which the decay starts
	Floor  float64 // fraction of LR at the end
	Total  int64
}

// At returns the learning rate of a step, counted from 0.
func (s RateSchedule) At(step int64) float64 {
	if step < s.Warmup {
		return s.LR * float64(step+1) / float64(s.Warmup)
	}
	from := max(float64(s.Warmup), s.Hold*float64(s.Total))
	if s.Decay == ConstantRate || s.Total <= 0 || float64(step) < from {
		return s.LR
	}
	done := 1.0
	if step < s.Total {
		done = (float64(step) - from) / (float64(s.Total) - from)
	}
	if s.Decay == CosineDecay {
		done = (1 - math.Cos(math.Pi*done)) / 2
	}
	return s.LR * (1 - done*(1-s.Floor))
}
