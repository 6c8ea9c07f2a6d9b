package kernels

// #include "dispatch.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	// gorgonia.org/tensor refuses to start on current Go releases without this promise.
	_ "go4.org/unsafe/assume-no-moving-gc"
	"gorgonia.org/tensor"
)

// Std is what a centred reward is divided by.
type Std string

// Baseline is what is subtracted from a reward.
type Baseline string

// The conventions' parts.
const (
	StdPopulation Std = "population"
	StdSample     Std = "sample"
	StdNone       Std = "none"

	BaselineMean           Baseline = "mean"
	BaselineLeaveOneOut    Baseline = "leave_one_out"
	BaselineLeaveOneOutStd Baseline = "leave_one_out_std"
)

// Convention says how advantages follow from rewards; the paper's is DefaultConvention.
type Convention struct {
	Std      Std      `json:"std"`
	Baseline Baseline `json:"baseline"`
	Eps      float64  `json:"eps"`       // added to the divisor
	SigmaMin float64  `json:"sigma_min"` // a group with a population std strictly below is degenerate
}

// DefaultConvention is M-GRPO's: population std, no epsilon, degenerate below 1e-6 (equations 10 and 13).
var DefaultConvention = Convention{Std: StdPopulation, Baseline: BaselineMean, SigmaMin: 1e-6}

func (c Convention) encode() (C.mgrpo_convention, error) {
	std, ok := map[Std]C.int32_t{StdPopulation: C.MGRPO_STD_POPULATION, StdSample: C.MGRPO_STD_SAMPLE, StdNone: C.MGRPO_STD_NONE}[c.Std]
	if !ok {
		return C.mgrpo_convention{}, fmt.Errorf("kernels: group_advantage: std %q is not population, sample or none", c.Std)
	}
	baseline, ok := map[Baseline]C.int32_t{
		BaselineMean: C.MGRPO_BASELINE_MEAN, BaselineLeaveOneOut: C.MGRPO_BASELINE_LEAVE_ONE_OUT,
		BaselineLeaveOneOutStd: C.MGRPO_BASELINE_LEAVE_ONE_OUT_STD,
	}[c.Baseline]
	if !ok {
		return C.mgrpo_convention{}, fmt.Errorf("kernels: group_advantage: baseline %q is not mean, leave_one_out or leave_one_out_std", c.Baseline)
	}
	return C.mgrpo_convention{std: std, baseline: baseline, eps: C.double(c.Eps), sigma_min: C.double(c.SigmaMin)}, nil
}

// GroupStats describe one group of rewards.
type GroupStats struct {
	Mean          float64
	StdPopulation float64
	WeightSum     float64
	Degenerate    bool // every advantage is 0 although there are members
	Empty         bool // no member with a positive weight
}

// GroupStats come from C as they are: its flags are 0 or 1, as Go's are.
var _ [unsafe.Sizeof(C.mgrpo_group_stats{})]byte = [unsafe.Sizeof(GroupStats{})]byte{}

// AdvantageError is a reward or weight that must not be trained on.
type AdvantageError struct {
	Code  string // "non_finite_reward", "bad_weight" or "non_finite_value"
	Group int64
	Index int64 // member within the group; -1 when the group as a whole is meant
}

func (e *AdvantageError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("kernels: group_advantage: %s: group %d", e.Code, e.Group)
	}
	return fmt.Sprintf("kernels: group_advantage: %s: group %d, member %d", e.Code, e.Group, e.Index)
}

var advantageCodes = map[C.int32_t]string{
	C.MGRPO_ADVANTAGE_NON_FINITE_REWARD: "non_finite_reward",
	C.MGRPO_ADVANTAGE_BAD_WEIGHT:        "bad_weight",
	C.MGRPO_ADVANTAGE_NON_FINITE_VALUE:  "non_finite_value",
}

// GroupAdvantage normalises ragged groups of rewards in one call, on CPU.
//
// rewards is float64 or float32, of any shape, read in row-major order: group g is elements
// offsets[g]..offsets[g+1]-1. weights is nil (all 1) or float64 with as many elements. The advantages have the
// rewards' shape and type; sums are float64 either way. Errors: *AdvantageError for refused data, *Error or a
// description of the mismatch for arguments that do not fit.
func GroupAdvantage(rewards, weights *tensor.Dense, offsets []int64, convention Convention) (*tensor.Dense, []GroupStats, error) {
	var backing any
	switch n := rewards.Shape().TotalSize(); rewards.Dtype() { // of a view, DataSize counts its whole window
	case tensor.Float64:
		backing = make([]float64, n)
	case tensor.Float32:
		backing = make([]float32, n)
	default:
		return nil, nil, fmt.Errorf("kernels: group_advantage: rewards are %v, want float64 or float32", rewards.Dtype())
	}
	advantages := tensor.New(tensor.WithShape(rewards.Shape()...), tensor.WithBacking(backing))
	stats := make([]GroupStats, max(len(offsets)-1, 0))
	if err := GroupAdvantageInto(advantages, stats, rewards, weights, offsets, convention); err != nil {
		return nil, nil, err
	}
	return advantages, stats, nil
}

// GroupAdvantageInto is GroupAdvantage into memory that is there: advantages is row-major, of the rewards' size and
// type and apart from them, and stats has a place for each group.
func GroupAdvantageInto(advantages *tensor.Dense, stats []GroupStats, rewards, weights *tensor.Dense, offsets []int64, convention Convention) error {
	c, err := convention.encode()
	if err != nil {
		return err
	}
	n := rewards.Shape().TotalSize()
	if len(offsets) == 0 || offsets[len(offsets)-1] != int64(n) {
		return fmt.Errorf("kernels: group_advantage: %d offsets do not end at the %d rewards", len(offsets), n)
	}
	groups := len(offsets) - 1
	if len(stats) != groups {
		return fmt.Errorf("kernels: group_advantage: room for the statistics of %d groups, not of %d", len(stats), groups)
	}
	if advantages.RequiresIterator() || advantages.DataOrder().IsColMajor() || advantages.Shape().TotalSize() != n || advantages.Dtype() != rewards.Dtype() {
		return fmt.Errorf("kernels: group_advantage: advantages are %v of shape %v, want %d row-major elements of %v", advantages.Dtype(), advantages.Shape(), n, rewards.Dtype())
	}
	w, err := weightsOf(weights, n)
	if err != nil {
		return err
	}
	contiguous, err := rowMajor(rewards)
	if err != nil {
		return err
	}
	var refusal C.mgrpo_advantage_error
	var status C.int32_t
	switch r := contiguous.Data().(type) {
	case []float64:
		status = C.mgrpo_group_advantage_cpu((*C.double)(Pointer(r)), (*C.double)(Pointer(w)), (*C.int64_t)(Pointer(offsets)),
			C.int64_t(groups), &c, (*C.double)(Pointer(advantages.Data().([]float64))), (*C.mgrpo_group_stats)(Pointer(stats)), &refusal)
	case []float32:
		status = C.mgrpo_group_advantage_f32_cpu((*C.float)(Pointer(r)), (*C.double)(Pointer(w)), (*C.int64_t)(Pointer(offsets)),
			C.int64_t(groups), &c, (*C.float)(Pointer(advantages.Data().([]float32))), (*C.mgrpo_group_stats)(Pointer(stats)), &refusal)
	default:
		return fmt.Errorf("kernels: group_advantage: rewards are %v, want float64 or float32", rewards.Dtype())
	}
	runtime.KeepAlive(contiguous)
	return advantageFailure(C.mgrpo_outcome{status: status}, refusal)
}

// GroupStatsBytes is the size of one group's GroupStats in a Backend's memory.
const GroupStatsBytes = C.sizeof_mgrpo_group_stats

// GroupAdvantageRaw is GroupAdvantageInto for arrays in the memory of b, all of weight 1: rewards and advantages float32
// [offsets[groups]], offsets int64 [groups+1], stats groups times GroupStatsBytes.
func GroupAdvantageRaw(b Backend, rewards, offsets unsafe.Pointer, groups int64, convention Convention, advantages, stats unsafe.Pointer) error {
	c, err := convention.encode()
	if err != nil {
		return err
	}
	var refusal C.mgrpo_advantage_error
	return advantageFailure(C.group_advantage_f32(b.c, rewards, offsets, C.int64_t(groups), &c, advantages, stats, &refusal), refusal)
}

func advantageFailure(r C.mgrpo_outcome, refusal C.mgrpo_advantage_error) error {
	if r.status == C.MGRPO_REFUSED {
		return &AdvantageError{Code: advantageCodes[refusal.code], Group: int64(refusal.group), Index: int64(refusal.index)}
	}
	return failure("group_advantage", r)
}

// rowMajor returns t itself if its elements lie in memory in row-major order, else a copy that does.
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
