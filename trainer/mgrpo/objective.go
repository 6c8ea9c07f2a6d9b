package mgrpo

import (
	"fmt"
	"math"
)

// Ratio is the importance ratio of the policy term.
type Ratio string

// Aggregation turns token losses into one number.
type Aggregation string

// KL is the estimator of the penalty towards a reference policy.
type KL string

const (
	RatioToken             Ratio = "token"              // PPO
	RatioSequenceProduct   Ratio = "sequence_product"   // the M-GRPO paper as printed (equations 14 to 17)
	RatioSequenceGeometric Ratio = "sequence_geometric" // GSPO
	RatioCISPO             Ratio = "cispo"              // MiniMax-M1

	TrajectoryMean Aggregation = "trajectory_mean" // mean over groups of the mean over trajectories of the token mean
	TokenMean      Aggregation = "token_mean"      // DAPO
	ConstantLength Aggregation = "constant"        // Dr. GRPO: divide by max_length

	KLNone KL = "none"
	KL1    KL = "k1" // x; as a loss its expected gradient is 0
	KL2    KL = "k2" // x^2/2
	KL3    KL = "k3" // exp(-x) - 1 + x
)

// maxExponent is the largest exponent whose exponential is finite in float32.
const maxExponent = 88

// Objective holds the options of the policy loss. A nil pointer is an option that is off ("none").
type Objective struct {
	Ratio         Ratio       `json:"ratio" yaml:"ratio"`
	EpsLow        float64     `json:"eps_low" yaml:"eps_low"`
	EpsHigh       float64     `json:"eps_high" yaml:"eps_high"`
	DualClip      *float64    `json:"dual_clip" yaml:"dual_clip"`   // > 1
	CispoLow      *float64    `json:"cispo_low" yaml:"cispo_low"`   // nil: no lower bound
	CispoHigh     float64     `json:"cispo_high" yaml:"cispo_high"` // the ratio's bound is 1 + cispo_high
	LogRatioClamp *float64    `json:"log_ratio_clamp" yaml:"log_ratio_clamp"`
	Aggregation   Aggregation `json:"aggregation" yaml:"aggregation"`
	MaxLength     *int        `json:"max_length" yaml:"max_length"` // needed by constant
	KL            KL          `json:"kl" yaml:"kl"`
	KLCoef        float64     `json:"kl_coef" yaml:"kl_coef"`
	EntropyCoef   float64     `json:"entropy_coef" yaml:"entropy_coef"`
	TISCap        *float64    `json:"tis_cap" yaml:"tis_cap"` // truncated importance sampling; nil: off
}

// DefaultObjective is the token-level clipped loss with asymmetric bounds 0.2 and 0.28.
func DefaultObjective() Objective {
	return Objective{
		Ratio: RatioToken, EpsLow: 0.2, EpsHigh: 0.28, CispoHigh: 4, LogRatioClamp: new(20.0),
		Aggregation: TrajectoryMean, KL: KLNone,
	}
}

// Validate returns a *SettingError that names the first key with an impossible value.
func (o Objective) Validate() error {
	if err := o.validateNames(); err != nil {
		return err
	}
	off := func(p *float64, fallback float64) float64 {
		if p == nil {
			return fallback
		}
		return *p
	}
	for _, f := range []struct {
		key           string
		value         float64
		low, high     float64
		lowIsExcluded bool
	}{
		{key: "eps_low", value: o.EpsLow, high: 1},
		{key: "eps_high", value: o.EpsHigh, high: math.MaxFloat32},
		{key: "dual_clip", value: off(o.DualClip, 3), low: 1, high: math.MaxFloat32, lowIsExcluded: true},
		{key: "cispo_low", value: off(o.CispoLow, 1), high: 1},
		{key: "cispo_high", value: o.CispoHigh, high: math.MaxFloat32},
		{key: "log_ratio_clamp", value: off(o.LogRatioClamp, 20), high: maxExponent, lowIsExcluded: true},
		{key: "kl_coef", value: o.KLCoef, high: math.MaxFloat32},
		{key: "entropy_coef", value: o.EntropyCoef, low: -math.MaxFloat32, high: math.MaxFloat32},
		{key: "tis_cap", value: off(o.TISCap, 2), high: math.MaxFloat32, lowIsExcluded: true},
	} {
		if !(f.value >= f.low && f.value <= f.high) || (f.lowIsExcluded && f.value == f.low) {
			return &SettingError{Key: f.key, Value: f.value, Reason: outside(f.low, f.high, f.lowIsExcluded)}
		}
	}
	if o.KLCoef != 0 && o.KL == KLNone {
		return &SettingError{Key: "kl_coef", Value: o.KLCoef, Reason: "needs an estimator: set kl to k1, k2 or k3"}
	}
	return nil
}

func (o Objective) validateNames() error {
	switch o.Ratio {
	case RatioToken, RatioSequenceProduct, RatioSequenceGeometric, RatioCISPO:
	default:
		return &SettingError{Key: "ratio", Value: o.Ratio, Reason: "must be token, sequence_product, sequence_geometric or cispo"}
	}
	switch o.Aggregation {
	case TrajectoryMean, TokenMean:
	case ConstantLength:
		if o.MaxLength == nil {
			return &SettingError{Key: "max_length", Value: "none", Reason: "aggregation constant needs it"}
		}
	default:
		return &SettingError{Key: "aggregation", Value: o.Aggregation, Reason: "must be trajectory_mean, token_mean or constant"}
	}
	if o.MaxLength != nil && *o.MaxLength < 1 {
		return &SettingError{Key: "max_length", Value: *o.MaxLength, Reason: "must be at least 1"}
	}
	switch o.KL {
	case KLNone, KL1, KL2, KL3:
	default:
		return &SettingError{Key: "kl", Value: o.KL, Reason: "must be none, k1, k2 or k3"}
	}
	return nil
}

func outside(low, high float64, lowIsExcluded bool) string {
	atLeast, upTo := "at least", ""
	if lowIsExcluded {
		atLeast = "more than"
	}
	if high < math.MaxFloat32 {
		upTo = fmt.Sprintf(" and at most %v", high)
	}
	if low == -math.MaxFloat32 {
		return "must be a finite number"
	}
	return fmt.Sprintf("must be %s %v%s", atLeast, low, upTo)
}

// clamp limits a log-ratio; inside reports whether it may pass a gradient (the boundary does).
func (o Objective) clamp(x float64) (clamped float64, inside bool) {
	if o.LogRatioClamp == nil {
		return x, true
	}
	limit := *o.LogRatioClamp
	return min(max(x, -limit), limit), math.Abs(x) <= limit
}

// policyTerm is l and dl/d(ln rho) of one ratio (section 5.1 of the specification, not CISPO). Ties take
// the unclipped branch.
func (o Objective) policyTerm(advantage, rho float64) (loss, slope float64) {
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

// cispoBounds are the bounds of the ratio inside CISPO's stop-gradient.
func (o Objective) cispoBounds() (low, high float64) {
	if o.CispoLow != nil {
		low = 1 - *o.CispoLow
	}
	return low, 1 + o.CispoHigh
}

// penalty is the KL estimator at x = new - ref and its derivative.
func (k KL) penalty(x float64) (value, slope float64) {
	switch k {
	case KL1:
		return x, 1
	case KL2:
		return x * x / 2, x
	case KL3:
		e := math.Expm1(-x)
		return e + x, -e
	}
	return 0, 0
}
