package kernels

import "github.com/mgrpo/mgrpo/trainer/mgrpo"

// NormaliserOn returns the group_advantage kernel of a backend. It compares the lengths of all groups first, since the
// kernel receives one array of weights. So it may refuse a later group than the first bad one.
func NormaliserOn(on Backend) mgrpo.Normaliser {
	return func(c mgrpo.Convention, groups []mgrpo.RewardGroup) ([]mgrpo.GroupAdvantage, error) {
		var rewards, weights []float64
		offsets := []int64{0}
		for i, g := range groups {
			if err := g.Check(); err != nil {
				return nil, mgrpo.InGroup(err, i, len(groups))
			}
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
