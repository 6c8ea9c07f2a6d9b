package advantages

import (
	"fmt"

	// gorgonia.org/tensor refuses to start on current Go releases without this promise.
	_ "go4.org/unsafe/assume-no-moving-gc"
	"gorgonia.org/tensor"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Batch normalises the rewards of a batch of queries within each query (docs/algorithm.md section 4; M-GRPO, arXiv 2511.13288, equations
// 9 to 13), on the CPU, with the kernel that training uses.
//
// rewards is float64 or float32, [queries, rollouts], or [rollouts] for a single query. weights is nil (all 1)
// or float64 of the rewards' shape. An entry of weight 0 is outside of its query's mean and spread and has the
// advantage 0. So queries with fewer rollouts than the others are padded with weight 0 and any finite reward.
//
// It returns advantages of the rewards' shape and type, and the statistics of each query. A reward
// that is not finite, a bad weight or a statistic that overflows is a *mgrpo.Refusal with the query
// (Group) and the rollout (Index). A convention that does not fit together is a *mgrpo.SettingError.
func Batch(rewards, weights *tensor.Dense, convention mgrpo.Convention) (*tensor.Dense, []mgrpo.GroupStats, error) {
	if err := convention.Validate(); err != nil {
		return nil, nil, err
	}
	shape := rewards.Shape()
	if len(shape) != 1 && len(shape) != 2 {
		return nil, nil, fmt.Errorf("advantages: rewards of shape %v, want [queries, rollouts] or [rollouts]", shape)
	}
	if weights != nil && !weights.Shape().Eq(shape) {
		return nil, nil, fmt.Errorf("advantages: weights of shape %v for rewards of shape %v", weights.Shape(), shape)
	}
	rollouts := shape[len(shape)-1]
	offsets := make([]int64, shape.TotalSize()/max(rollouts, 1)+1)
	for query := range offsets {
		offsets[query] = int64(query * rollouts)
	}
	r, err := elements(rewards)
	if err != nil {
		return nil, nil, err
	}
	var w []float64
	if weights != nil {
		data, err := elements(weights)
		if err != nil {
			return nil, nil, err
		}
		double, ok := data.([]float64)
		if !ok {
			return nil, nil, fmt.Errorf("advantages: weights are %v, want float64", weights.Dtype())
		}
		w = double
	}
	switch r := r.(type) {
	case []float64:
		return normalise(r, w, offsets, shape, convention)
	case []float32:
		return normalise(r, w, offsets, shape, convention)
	}
	return nil, nil, fmt.Errorf("advantages: rewards are %v, want float64 or float32", rewards.Dtype())
}

func normalise[T float32 | float64](rewards []T, weights []float64, offsets []int64, shape tensor.Shape,
	convention mgrpo.Convention) (*tensor.Dense, []mgrpo.GroupStats, error) {
	advantages, stats, err := kernels.GroupAdvantage(kernels.CPU, rewards, weights, offsets, convention)
	if err != nil {
		return nil, nil, err
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(advantages)), stats, nil
}

// elements returns a tensor's elements in row-major order. A view is copied: its backing is a window of the tensor it was cut from.
func elements(t *tensor.Dense) (any, error) {
	dense, ok := t.Materialize().(*tensor.Dense)
	if !ok || t.IsMasked() || dense.RequiresIterator() || dense.DataOrder().IsColMajor() {
		return nil, fmt.Errorf("advantages: the tensor of shape %v is masked or not row-major: copy the elements into a row-major one", t.Shape())
	}
	return dense.Data(), nil
}
