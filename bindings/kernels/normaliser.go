package kernels

import (
	"gorgonia.org/tensor"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// NormaliserOn returns the group_advantage kernel of a backend. Rewards and weights are float64 host tensors (tensor.Dense).
func NormaliserOn(on Backend) mgrpo.Normaliser {
	return func(c mgrpo.Convention, groups []mgrpo.RewardGroup) ([]mgrpo.GroupAdvantage, error) {
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
		out := make([]mgrpo.GroupAdvantage, len(groups))
		if len(rewards) == 0 { // tensor.Dense cannot be empty
			for i := range out {
				out[i].Empty = true
			}
			return out, nil
		}
		dense := func(v []float64) *tensor.Dense { return tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v)) }
		advantages, stats, err := GroupAdvantage(on, dense(rewards), dense(weights), offsets, c)
		if err != nil {
			return nil, err
		}
		flat := advantages.Data().([]float64)
		for i, s := range stats {
			out[i] = mgrpo.GroupAdvantage{GroupStats: s, Advantage: flat[offsets[i]:offsets[i+1]]}
		}
		return out, nil
	}
}
