package kernels

// #include "dispatch.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

func encodeConvention(c mgrpo.Convention) (C.mgrpo_convention, error) {
	std, ok := map[mgrpo.Std]C.int32_t{mgrpo.StdPopulation: C.MGRPO_STD_POPULATION, mgrpo.StdSample: C.MGRPO_STD_SAMPLE, mgrpo.StdNone: C.MGRPO_STD_NONE}[c.Std]
	if !ok {
		return C.mgrpo_convention{}, fmt.Errorf("kernels: group_advantage: std %q is not population, sample or none", c.Std)
	}
	baseline, ok := map[mgrpo.Baseline]C.int32_t{
		mgrpo.BaselineMean: C.MGRPO_BASELINE_MEAN, mgrpo.BaselineLeaveOneOut: C.MGRPO_BASELINE_LEAVE_ONE_OUT,
		mgrpo.BaselineLeaveOneOutStd: C.MGRPO_BASELINE_LEAVE_ONE_OUT_STD,
	}[c.Baseline]
	if !ok {
		return C.mgrpo_convention{}, fmt.Errorf("kernels: group_advantage: baseline %q is not mean, leave_one_out or leave_one_out_std", c.Baseline)
	}
	return C.mgrpo_convention{std: std, baseline: baseline, eps: C.double(c.Eps), sigma_min: C.double(c.SigmaMin)}, nil
}

// C writes into mgrpo.GroupStats directly. Both have the same layout, and C's flags are 0 or 1, like Go's.
var _ [unsafe.Sizeof(C.mgrpo_group_stats{})]byte = [unsafe.Sizeof(mgrpo.GroupStats{})]byte{}

var advantageCodes = map[C.int32_t]mgrpo.Code{
	C.MGRPO_ADVANTAGE_NON_FINITE_REWARD: mgrpo.NonFiniteReward,
	C.MGRPO_ADVANTAGE_BAD_WEIGHT:        mgrpo.BadWeight,
	C.MGRPO_ADVANTAGE_NON_FINITE_VALUE:  mgrpo.NonFiniteValue,
}

// GroupAdvantage normalises ragged groups of rewards on a backend, all in one launch. On a GPU the arrays are copied
// there and back.
//
// Group g is rewards[offsets[g]:offsets[g+1]]. weights is nil (all 1) or has as many elements as rewards. Sums are float64
// for both types of rewards. It returns an advantage for each reward, and the statistics of each group. Errors: *mgrpo.Refusal for
// refused data, *Error or a description of the mismatch for arguments that do not fit.
func GroupAdvantage[T float32 | float64](b Backend, rewards []T, weights []float64, offsets []int64,
	convention mgrpo.Convention) ([]T, []mgrpo.GroupStats, error) {
	if len(offsets) == 0 || offsets[0] != 0 || offsets[len(offsets)-1] != int64(len(rewards)) || !slices.IsSorted(offsets) {
		return nil, nil, fmt.Errorf("kernels: group_advantage: %d offsets do not rise from 0 to the %d rewards", len(offsets), len(rewards))
	}
	if weights != nil && len(weights) != len(rewards) {
		return nil, nil, fmt.Errorf("kernels: group_advantage: %d weights, want one for each of the %d rewards", len(weights), len(rewards))
	}
	dtype := Float32
	if _, double := any(rewards).([]float64); double {
		dtype = Float64
	}
	advantages, stats := make([]T, len(rewards)), make([]mgrpo.GroupStats, len(offsets)-1)
	m := NewMemory(b)
	r, w, at := Put(m, rewards), Put(m, weights), Put(m, offsets)
	a, s := Put(m, advantages), Put(m, stats)
	err := m.Err()
	if err == nil {
		err = GroupAdvantageRaw(b, dtype, r.Pointer(), w.Pointer(), at.Pointer(), int64(len(stats)), convention, a.Pointer(), s.Pointer())
	}
	if err == nil {
		err = errors.Join(a.Download(), s.Download())
	}
	if err = cmp.Or(err, m.Free()); err != nil {
		return nil, nil, err
	}
	return advantages, stats, nil
}

// GroupStatsBytes is the size of one group's GroupStats in a Backend's memory.
const GroupStatsBytes = C.sizeof_mgrpo_group_stats

// GroupAdvantageRaw computes GroupAdvantage for arrays in the memory of b. They are rewards
// and advantages [offsets[groups]] of dtype (Float64 or Float32), weights float64 as many or
// nil (all 1), offsets int64 [groups+1], stats groups times GroupStatsBytes.
func GroupAdvantageRaw(b Backend, dtype DType, rewards, weights, offsets unsafe.Pointer, groups int64, convention mgrpo.Convention,
	advantages, stats unsafe.Pointer) error {
	c, err := encodeConvention(convention)
	if err != nil {
		return err
	}
	var refusal C.mgrpo_advantage_error
	r := C.group_advantage(b.c, C.int32_t(dtype), rewards, weights, offsets, C.int64_t(groups), &c, advantages, stats, &refusal)
	return advantageFailure(r, refusal, int(groups))
}

func advantageFailure(r C.mgrpo_outcome, refusal C.mgrpo_advantage_error, groups int) error {
	if r.status != C.MGRPO_REFUSED {
		return failure("group_advantage", r)
	}
	e := &mgrpo.Refusal{Code: advantageCodes[refusal.code]}
	if refusal.index >= 0 {
		e.Index = new(int(refusal.index))
	}
	return mgrpo.InGroup(e, int(refusal.group), groups)
}
