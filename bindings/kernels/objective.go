package kernels

// #include "dispatch.h"
import "C"

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

var (
	ratioCodes = map[mgrpo.Ratio]C.int32_t{
		mgrpo.RatioToken: C.MGRPO_RATIO_TOKEN, mgrpo.RatioSequenceProduct: C.MGRPO_RATIO_SEQUENCE_PRODUCT,
		mgrpo.RatioSequenceGeometric: C.MGRPO_RATIO_SEQUENCE_GEOMETRIC, mgrpo.RatioCISPO: C.MGRPO_RATIO_CISPO,
	}
	aggregationCodes = map[mgrpo.Aggregation]C.int32_t{
		mgrpo.TrajectoryMean: C.MGRPO_AGGREGATION_TRAJECTORY_MEAN, mgrpo.TokenMean: C.MGRPO_AGGREGATION_TOKEN_MEAN,
		mgrpo.ConstantLength: C.MGRPO_AGGREGATION_CONSTANT,
	}
	klCodes = map[mgrpo.KL]C.int32_t{mgrpo.KLNone: C.MGRPO_KL_NONE, mgrpo.KL1: C.MGRPO_KL_K1, mgrpo.KL2: C.MGRPO_KL_K2, mgrpo.KL3: C.MGRPO_KL_K3}
)

// encodeObjective returns the C form. There 0 means off, and 1 means no lower CISPO bound.
func encodeObjective(c mgrpo.Objective) (C.mgrpo_loss_config, error) {
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
	if c.CISPOLow != nil {
		out.cispo_low = C.double(*c.CISPOLow)
	}
	out.eps_low, out.eps_high, out.cispo_high = C.double(c.EpsLow), C.double(c.EpsHigh), C.double(c.CISPOHigh)
	out.max_length = C.double(c.MaxLength)
	out.kl_coef, out.entropy_coef = C.double(c.KLCoef), C.double(c.EntropyCoef)
	return out, nil
}
