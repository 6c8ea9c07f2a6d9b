package oracle

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// maxExponent is the largest exponent whose exponential is finite in float32.
const maxExponent = 88

// objective has a method for each formula of the policy loss.
type objective mgrpo.Objective

// clamp limits a log-ratio; inside reports whether the gradient passes (it does at the boundary).
func (o objective) clamp(x float64) (clamped float64, inside bool) {
	if o.LogRatioClamp == nil {
		return x, true
	}
	limit := *o.LogRatioClamp
	return min(max(x, -limit), limit), math.Abs(x) <= limit
}

// policyTerm returns l and dl/d(ln rho) of one ratio (docs/algorithm.md §5.1, not CISPO). At a tie the unclipped branch
// applies.
func (o objective) policyTerm(advantage, rho float64) (loss, slope float64) {
	low, high := 1-o.EpsLow, 1+o.EpsHigh
	switch {
	case advantage > 0:
		loss = -advantage * min(rho, high)
		if rho <= high {
			slope = -advantage * rho
		}
	case advantage < 0:
		bound := math.Inf(1)
		if o.DualClip != nil {
			bound = *o.DualClip
		}
		loss = -advantage * min(max(rho, low), bound)
		if rho >= low && rho <= bound {
			slope = -advantage * rho
		}
	}
	return loss, slope
}

// cispoBounds returns the bounds of the ratio inside CISPO's stop-gradient.
func (o objective) cispoBounds() (low, high float64) {
	if o.CISPOLow != nil {
		low = 1 - *o.CISPOLow
	}
	return low, 1 + o.CISPOHigh
}

// penalty returns the KL estimator at x = new - ref and its derivative.
func penalty(k mgrpo.KL, x float64) (value, slope float64) {
	switch k {
	case mgrpo.KL1:
		return x, 1
	case mgrpo.KL2:
		return x * x / 2, x
	case mgrpo.KL3:
		e := math.Expm1(-x)
		return e + x, -e
	}
	return 0, 0
}
