package published

import (
	"math"
	"testing"
)

// The shapes are from the published models, and the expected numbers of parameters are from their cards.
func TestQwen3(t *testing.T) {
	for i, billions := range []float64{1.72, 4.02, 8.19, 14.77, 30.53} {
		p := Qwen3[i]
		if err := p.Arch.Validate(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if got := float64(p.Arch.Parameters()) / 1e9; math.Abs(got-billions) > 0.005 {
			t.Errorf("%s has %.3f billion parameters, its card has %.2f", p.Name, got, billions)
		}
	}
}
