package kernels

// #include "dispatch.h"
import "C"

import "fmt"

// Ratio is the importance ratio of the policy term.
type Ratio string

// TokenLevel tells a ratio of one token from one of a whole sequence.
func (r Ratio) TokenLevel() bool { return r == RatioToken || r == RatioCISPO }

// Aggregation turns token losses into one number.
type Aggregation string

// KL is the estimator of the penalty towards the reference policy.
type KL string

// The objective's modes.
const (
	RatioToken             Ratio = "token"
	RatioSequenceProduct   Ratio = "sequence_product"
	RatioSequenceGeometric Ratio = "sequence_geometric"
	RatioCISPO             Ratio = "cispo"

	TrajectoryMean Aggregation = "trajectory_mean"
	TokenMean      Aggregation = "token_mean"
	ConstantLength Aggregation = "constant"

	KLNone KL = "none"
	KL1    KL = "k1"
	KL2    KL = "k2"
	KL3    KL = "k3"
)

var (
	ratioCodes = map[Ratio]C.int32_t{
		RatioToken: C.MGRPO_RATIO_TOKEN, RatioSequenceProduct: C.MGRPO_RATIO_SEQUENCE_PRODUCT,
		RatioSequenceGeometric: C.MGRPO_RATIO_SEQUENCE_GEOMETRIC, RatioCISPO: C.MGRPO_RATIO_CISPO,
	}
	aggregationCodes = map[Aggregation]C.int32_t{
		TrajectoryMean: C.MGRPO_AGGREGATION_TRAJECTORY_MEAN, TokenMean: C.MGRPO_AGGREGATION_TOKEN_MEAN,
		ConstantLength: C.MGRPO_AGGREGATION_CONSTANT,
	}
	klCodes = map[KL]C.int32_t{KLNone: C.MGRPO_KL_NONE, KL1: C.MGRPO_KL_K1, KL2: C.MGRPO_KL_K2, KL3: C.MGRPO_KL_K3}
)

// LossConfig holds the options of the policy loss; a nil pointer is an option that is off ("none").
type LossConfig struct {
	Ratio         Ratio       `json:"ratio"`
	EpsLow        float64     `json:"eps_low"`
	EpsHigh       float64     `json:"eps_high"`
	DualClip      *float64    `json:"dual_clip"`  // > 1
	CispoLow      *float64    `json:"cispo_low"`  // nil: no lower bound
	CispoHigh     float64     `json:"cispo_high"` // the ratio's bound is 1 + cispo_high
	LogRatioClamp *float64    `json:"log_ratio_clamp"`
	Aggregation   Aggregation `json:"aggregation"`
	MaxLength     *int        `json:"max_length"` // needed by constant
	KL            KL          `json:"kl"`
	KLCoef        float64     `json:"kl_coef"`
	EntropyCoef   float64     `json:"entropy_coef"`
	TISCap        *float64    `json:"tis_cap"`
}

// DefaultLossConfig is the token-level clipped loss with bounds 0.2 and 0.28.
func DefaultLossConfig() LossConfig {
	return LossConfig{
		Ratio: RatioToken, EpsLow: 0.2, EpsHigh: 0.28, CispoHigh: 4, LogRatioClamp: new(20.0),
		Aggregation: TrajectoryMean, KL: KLNone,
	}
}

// encode gives the C form, in which 0 stands for off (1 for no lower CISPO bound).
func (c LossConfig) encode() (C.mgrpo_loss_config, error) {
	var out C.mgrpo_loss_config
	var known [3]bool
	out.ratio, known[0] = ratioCodes[c.Ratio]
	out.aggregation, known[1] = aggregationCodes[c.Aggregation]
	out.kl, known[2] = klCodes[c.KL]
	for i, name := range []string{"ratio: " + string(c.Ratio), "aggregation: " + string(c.Aggregation), "kl: " + string(c.KL)} {
		if !known[i] {
			return out, fmt.Errorf("kernels: policy_loss: unknown mode %s", name)
		}
	}
	for _, f := range []struct {
		key   string
		value *float64
		to    *C.double
	}{
		{"dual_clip", c.DualClip, &out.dual_clip}, {"tis_cap", c.TISCap, &out.tis_cap},
		{"log_ratio_clamp", c.LogRatioClamp, &out.log_ratio_clamp},
	} {
		if f.value == nil {
			continue
		}
		if !(*f.value > 0) {
			return out, fmt.Errorf("kernels: policy_loss: %s is %v, want a positive number or nil for off", f.key, *f.value)
		}
		*f.to = C.double(*f.value)
	}
	out.cispo_low = 1
	if c.CispoLow != nil {
		out.cispo_low = C.double(*c.CispoLow)
	}
	if c.MaxLength != nil {
		out.max_length = C.double(*c.MaxLength)
	}
	out.eps_low, out.eps_high, out.cispo_high = C.double(c.EpsLow), C.double(c.EpsHigh), C.double(c.CispoHigh)
	out.kl_coef, out.entropy_coef = C.double(c.KLCoef), C.double(c.EntropyCoef)
	return out, nil
}
