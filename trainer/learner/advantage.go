package learner

import (
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
	advantages, stats, err := kernels.GroupAdvantage(dense(rewards), dense(weights), offsets, c)
	if err != nil {
		return nil, err
	}
	flat := advantages.Data().([]float64)
	out := make([]mgrpo.GroupAdvantage, len(groups))
	for i, s := range stats {
		out[i] = mgrpo.GroupAdvantage{GroupStats: s, Advantage: flat[offsets[i]:offsets[i+1]]}
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
