package learner

import (
	"errors"

	"gorgonia.org/tensor"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Normalise is the mgrpo.Normaliser that trains: all ragged groups in one call of the group_advantage
// kernel. Rewards and weights cross as tensor.Dense.
func Normalise(c mgrpo.Convention, groups []mgrpo.RewardGroup) ([]mgrpo.GroupAdvantage, error) {
	var rewards, weights []float64
	offsets := []int64{0}
	for _, g := range groups {
		rewards = append(rewards, g.Rewards...)
		if g.Weights == nil {
			for range g.Rewards {
				weights = append(weights, 1)
			}
		}
		weights = append(weights, g.Weights...)
		offsets = append(offsets, int64(len(rewards)))
	}
	if len(rewards) == 0 { // tensor.Dense cannot be empty
		return emptyGroups(len(groups)), nil
	}
	convention := kernels.Convention{
		Std: kernels.Std(c.Std), Baseline: kernels.Baseline(c.Baseline), Eps: c.Eps, SigmaMin: c.SigmaMin,
	}
	advantages, stats, err := kernels.GroupAdvantage(dense(rewards), dense(weights), offsets, convention)
	if err != nil {
		return nil, refusal(err, len(groups))
	}
	flat := advantages.Data().([]float64)
	out := make([]mgrpo.GroupAdvantage, len(groups))
	for i, s := range stats {
		out[i] = mgrpo.GroupAdvantage{
			Advantage: flat[offsets[i]:offsets[i+1]], Mean: s.Mean, Std: s.StdPopulation, WeightSum: s.WeightSum,
			Degenerate: s.Degenerate, Empty: s.Empty,
		}
	}
	return out, nil
}

func dense(v []float64) *tensor.Dense {
	return tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v))
}

func emptyGroups(n int) []mgrpo.GroupAdvantage {
	out := make([]mgrpo.GroupAdvantage, n)
	for i := range out {
		out[i].Empty = true
	}
	return out
}

// refusal gives the kernel's error the form that the algorithm's own normaliser has.
func refusal(err error, groups int) error {
	var e *kernels.AdvantageError
	if !errors.As(err, &e) {
		return err
	}
	r := &mgrpo.Refusal{Code: mgrpo.Code(e.Code)}
	if e.Index >= 0 {
		r.Index = new(int(e.Index))
	}
	if groups > 1 {
		r.Group = new(int(e.Group))
	}
	return r
}
