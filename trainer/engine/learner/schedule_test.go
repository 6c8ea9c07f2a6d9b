package learner

import (
	"math"
	"testing"
)

// TestSchedule checks the rates of each kind of schedule at the steps where a phase begins or ends.
func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		name string
		s    RateSchedule
		want map[int64]float64 // rate by step, counted from 0
	}{
		{"constant", RateSchedule{LR: 8, Decay: ConstantRate, Total: 10}, map[int64]float64{0: 8, 9: 8, 100: 8}},
		{"warm-up", RateSchedule{LR: 8, Decay: ConstantRate, Warmup: 4}, map[int64]float64{0: 2, 1: 4, 3: 8, 4: 8}},
		{"linear", RateSchedule{LR: 8, Decay: LinearDecay, Warmup: 2, Floor: 0.25, Total: 10}, map[int64]float64{0: 4, 1: 8, 2: 8, 6: 5, 10: 2, 50: 2}},
		{"cosine", RateSchedule{LR: 8, Decay: CosineDecay, Floor: 0.25, Total: 10}, map[int64]float64{0: 8, 5: 5, 10: 2, 11: 2}},
		{"a plateau", RateSchedule{LR: 8, Decay: LinearDecay, Hold: 0.5, Total: 10}, map[int64]float64{5: 8, 6: 6.4, 10: 0}},
		{"a warm-up longer than the plateau", RateSchedule{LR: 8, Decay: LinearDecay, Warmup: 6, Hold: 0.5, Total: 10}, map[int64]float64{5: 8, 6: 8, 8: 4}},
		{"a plateau to the end", RateSchedule{LR: 8, Decay: LinearDecay, Hold: 1, Floor: 0.25, Total: 10}, map[int64]float64{9: 8, 10: 2, 50: 2}},
		{"a warm-up to the end", RateSchedule{LR: 8, Decay: CosineDecay, Warmup: 10, Floor: 0.25, Total: 10}, map[int64]float64{9: 8, 10: 2, 50: 2}},
		{"no steps", RateSchedule{LR: 8, Decay: LinearDecay, Warmup: 3}, map[int64]float64{2: 8, 3: 8, 9: 8}},
	} {
		for step, want := range c.want {
			if got := c.s.At(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s: step %d: %v, want %v", c.name, step, got, want)
			}
		}
	}
}
