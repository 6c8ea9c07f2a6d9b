package learner

import "math"

// Schedule is the learning rate as a function of the step: a linear warm-up, a plateau, then a decay to Floor × LR at
// step Total. Later steps have that rate, too.
type Schedule struct {
	LR     float64
	Warmup int64   // steps of linear rise: step s < Warmup has LR·(s+1)/Warmup
	Kind   string  // "constant", "linear" or "cosine"
	Hold   float64 // fraction of Total at which the decay starts
	Floor  float64 // fraction of LR at the end
	Total  int64
}

// At returns the learning rate of step s, counted from 0.
func (c Schedule) At(s int64) float64 {
	if s < c.Warmup {
		return c.LR * float64(s+1) / float64(c.Warmup)
	}
	from := max(float64(c.Warmup), c.Hold*float64(c.Total))
	if c.Kind == "constant" || float64(s) < from || float64(c.Total) <= from {
		return c.LR
	}
	done := min((float64(s)-from)/(float64(c.Total)-from), 1)
	if c.Kind == "cosine" {
		done = (1 - math.Cos(math.Pi*done)) / 2
	}
	return c.LR * (1 - done*(1-c.Floor))
}
