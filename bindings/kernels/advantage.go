package kernels

// #include "dispatch.h"
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	// gorgonia.org/tensor refuses to start on current Go releases without this promise.
	_ "go4.org/unsafe/assume-no-moving-gc"
	"gorgonia.org/tensor"

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
// rewards is float64 or float32, of any shape, read in row-major order: group g is elements
// offsets[g]..offsets[g+1]-1. weights is nil (all 1) or float64 with as many elements. The advantages have the
// rewards' shape and type; sums are float64 either way. Errors: *mgrpo.Refusal for refused data, *Error or a
// description of the mismatch for arguments that do not fit.
func GroupAdvantage(b Backend, rewards, weights *tensor.Dense, offsets []int64, convention mgrpo.Convention) (*tensor.Dense, []mgrpo.GroupStats, error) {
	var backing any
	switch n := rewards.Shape().TotalSize(); rewards.Dtype() { // DataSize of a view would count its whole window
	case tensor.Float64:
		backing = make([]float64, n)
	case tensor.Float32:
		backing = make([]float32, n)
	default:
		return nil, nil, fmt.Errorf("kernels: group_advantage: rewards are %v, want float64 or float32", rewards.Dtype())
	}
	advantages := tensor.New(tensor.WithShape(rewards.Shape()...), tensor.WithBacking(backing))
	stats := make([]mgrpo.GroupStats, max(len(offsets)-1, 0))
	if err := GroupAdvantageInto(b, advantages, stats, rewards, weights, offsets, convention); err != nil {
		return nil, nil, err
	}
	return advantages, stats, nil
}

// GroupAdvantageInto computes GroupAdvantage into the caller's memory. advantages is row-major,
// has the rewards' size and type, and does not overlap them. stats has one element for each group.
func GroupAdvantageInto(b Backend, advantages *tensor.Dense, stats []mgrpo.GroupStats, rewards, weights *tensor.Dense,
	offsets []int64, convention mgrpo.Convention) error {
	n := rewards.Shape().TotalSize()
	if len(offsets) == 0 || offsets[0] != 0 || offsets[len(offsets)-1] != int64(n) || !slices.IsSorted(offsets) {
		return fmt.Errorf("kernels: group_advantage: %d offsets do not rise from 0 to the %d rewards", len(offsets), n)
	}
	groups := len(offsets) - 1
	if len(stats) != groups {
		return fmt.Errorf("kernels: group_advantage: stats has %d elements, want one for each of the %d groups", len(stats), groups)
	}
	if advantages.RequiresIterator() || advantages.DataOrder().IsColMajor() || advantages.Shape().TotalSize() != n || advantages.Dtype() != rewards.Dtype() {
		return fmt.Errorf("kernels: group_advantage: advantages are %v of shape %v, want %d row-major elements of %v", advantages.Dtype(),
			advantages.Shape(), n, rewards.Dtype())
	}
	w, err := weightsOf(weights, n)
	if err != nil {
		return err
	}
	contiguous, err := rowMajor(rewards)
	if err != nil {
		return err
	}
	switch r := contiguous.Data().(type) {
	case []float64:
		return groupAdvantage(b, r, w, offsets, convention, advantages.Data().([]float64), stats)
	case []float32:
		return groupAdvantage(b, r, w, offsets, convention, advantages.Data().([]float32), stats)
	default:
		return fmt.Errorf("kernels: group_advantage: rewards are %v, want float64 or float32", rewards.Dtype())
	}
}

// groupAdvantage runs the kernel over the host's slices.
func groupAdvantage[T float32 | float64](b Backend, rewards []T, weights []float64, offsets []int64, convention mgrpo.Convention,
	advantages []T, stats []mgrpo.GroupStats) error {
	dtype := Float32
	if _, double := any(rewards).([]float64); double {
		dtype = Float64
	}
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
	if freed := m.Free(); err == nil {
		err = freed
	}
	return err
}

// GroupStatsBytes is the size of one group's GroupStats in a Backend's memory.
const GroupStatsBytes = C.sizeof_mgrpo_group_stats

// GroupAdvantageRaw computes GroupAdvantageInto for arrays in the memory of b. They are rewards
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
	if groups > 1 {
		e.Group = new(int(refusal.group))
	}
	if refusal.index >= 0 {
		e.Index = new(int(refusal.index))
	}
	return e
}

// rowMajor returns t itself if its elements are in row-major order in memory, else a row-major copy.
func rowMajor(t *tensor.Dense) (*tensor.Dense, error) {
	if t.IsMasked() {
		return nil, fmt.Errorf("kernels: group_advantage: masked tensors are not supported: select the members first")
	}
	if !t.RequiresIterator() && !t.DataOrder().IsColMajor() {
		return t, nil
	}
	dense, ok := t.Materialize().(*tensor.Dense)
	if !ok || dense.RequiresIterator() || dense.DataOrder().IsColMajor() {
		return nil, fmt.Errorf("kernels: group_advantage: tensor of shape %v is not row-major", t.Shape())
	}
	return dense, nil
}

func weightsOf(t *tensor.Dense, n int) ([]float64, error) {
	if t == nil {
		return nil, nil
	}
	contiguous, err := rowMajor(t)
	if err != nil {
		return nil, err
	}
	w, ok := contiguous.Data().([]float64)
	if !ok || len(w) != n {
		return nil, fmt.Errorf("kernels: group_advantage: weights are %v with %d elements, want float64 with %d", t.Dtype(), t.Shape().TotalSize(), n)
	}
	return w, nil
}
