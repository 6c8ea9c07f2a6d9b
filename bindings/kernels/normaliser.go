package kernels

import "github.com/mgrpo/mgrpo/trainer/mgrpo"

// NormaliserOn returns the group_advantage kernel of a backend.
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
		advantages, stats, err := GroupAdvantage(on, rewards, weights, offsets, c)
		if err != nil {
			return nil, err
		}
		out := make([]mgrpo.GroupAdvantage, len(groups))
		for i, s := range stats {
			out[i] = mgrpo.GroupAdvantage{GroupStats: s, Advantage: advantages[offsets[i]:offsets[i+1]]}
		}
		return out, nil
	}
}
