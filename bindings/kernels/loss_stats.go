package kernels

// #include "dispatch.h"
import "C"

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// LossTotals holds counts over a whole optimizer batch.
type LossTotals struct{ c C.mgrpo_loss_totals }

// LossSums holds the raw sums of one or several micro-batches. The zero value holds no micro-batch.
type LossSums struct {
	c     C.mgrpo_loss_sums
	begun bool
}

// Merge adds the sums of another micro-batch.
func (s *LossSums) Merge(part LossSums) {
	switch {
	case !part.begun:
	case !s.begun:
		*s = part
	default:
		C.mgrpo_loss_sums_merge(&s.c, &part.c)
	}
}

// MarshalBinary encodes the sums for another process of the same program.
func (s LossSums) MarshalBinary() ([]byte, error) {
	if !s.begun {
		return nil, nil
	}
	return slices.Clone(s.bytes()), nil
}

// UnmarshalBinary decodes the output of MarshalBinary.
func (s *LossSums) UnmarshalBinary(b []byte) error {
	if len(b) != 0 && len(b) != len(s.bytes()) {
		return fmt.Errorf("kernels: sums of a loss in %d bytes, expected %d", len(b), len(s.bytes()))
	}
	s.begun = len(b) > 0
	copy(s.bytes(), b)
	return nil
}

func (s *LossSums) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&s.c)), unsafe.Sizeof(s.c))
}

// Stats returns the statistics of a batch after all of its micro-batches have been merged.
func (s LossSums) Stats(totals LossTotals) mgrpo.LossStats {
	if !s.begun {
		C.mgrpo_loss_sums_init(&s.c)
	}
	var c C.mgrpo_loss_stats
	C.mgrpo_loss_stats_finalize(&s.c, &totals.c, &c)
	return mgrpo.LossStats{
		Loss: float64(c.loss), LossPolicy: float64(c.loss_policy), LossKL: float64(c.loss_kl), LossEntropy: float64(c.loss_entropy),
		Tokens: int64(c.tokens), WeightedTokens: float64(c.weighted_tokens), Trajectories: int64(c.trajectories),
		EmptyTrajectories: int64(c.empty_trajectories), Groups: int64(c.groups),
		ClipFracLow: float64(c.clip_frac_low), ClipFracHigh: float64(c.clip_frac_high), DualClipFrac: float64(c.dual_clip_frac),
		RatioMean: float64(c.ratio_mean), RatioMin: float64(c.ratio_min), RatioMax: float64(c.ratio_max),
		ApproxKLK1: float64(c.approx_kl_k1), ApproxKLK3: float64(c.approx_kl_k3),
		LogRatioClampedFrac: float64(c.log_ratio_clamped_frac),
		EntropyMean:         optionalStat(c.entropy_mean), RefKLMean: optionalStat(c.ref_kl_mean),
		TISMean: optionalStat(c.tis_mean), TISMax: optionalStat(c.tis_max), TISTruncatedFrac: optionalStat(c.tis_truncated_frac),
		BehaviourGapMean: optionalStat(c.behaviour_gap_mean), BehaviourGapMax: optionalStat(c.behaviour_gap_max),
	}
}

// optionalStat returns a statistic, or nil if C returned NaN because the statistic's input array was not supplied.
func optionalStat(x C.double) *float64 {
	if math.IsNaN(float64(x)) {
		return nil
	}
	return new(float64(x))
}
