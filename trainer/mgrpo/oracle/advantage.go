package oracle

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// rounding is the range of equal rewards as a fraction of the largest magnitude in a group. Rewards within it differ
// only through the order of sums.
const rounding = 0x1p-40

// Normalise implements mgrpo.Normaliser as the reference, in float64 with two passes.
func Normalise(c mgrpo.Convention, groups []mgrpo.RewardGroup) ([]mgrpo.GroupAdvantage, error) {
	out := make([]mgrpo.GroupAdvantage, len(groups))
	for i, g := range groups {
		a, err := normalise(c, g)
		if err != nil {
			return nil, mgrpo.InGroup(err, i, len(groups))
		}
		out[i] = a
	}
	return out, nil
}

func normalise(c mgrpo.Convention, group mgrpo.RewardGroup) (mgrpo.GroupAdvantage, error) {
	if err := group.Check(); err != nil {
		return mgrpo.GroupAdvantage{}, err
	}
	rewards, weights := group.Rewards, group.Weights
	if weights == nil {
		weights = make([]float64, len(rewards))
		for i := range weights {
			weights[i] = 1
		}
	}
	if err := checkGroup(c, rewards, weights); err != nil {
		return mgrpo.GroupAdvantage{}, err
	}
	g := mgrpo.GroupAdvantage{GroupStats: groupStatistics(rewards, weights, 0), Advantage: make([]float64, len(rewards))}
	g.Degenerate = g.Degenerate || (!g.Empty && (g.Std < c.SigmaMin || g.Std == 0 || (needsTwo(c) && atMostOneUnit(g.WeightSum))))
	if g.Empty || g.Degenerate {
		return g, nil
	}
	if math.IsNaN(g.Std) || math.IsInf(g.Std, 0) {
		return mgrpo.GroupAdvantage{}, &mgrpo.Refusal{Code: mgrpo.NonFiniteValue, Field: "std", Message: "the rewards' spread overflows"}
	}
	for i, r := range rewards {
		if weights[i] > 0 {
			g.Advantage[i] = advantage(c, g.GroupStats, rewards, weights, i, r)
		}
	}
	return g, nil
}

// atMostOneUnit reports whether a total weight is at most 1, up to the rounding of its weights: nine times 1/9 is more.
func atMostOneUnit(weightSum float64) bool { return weightSum <= 1+0x1p-20 }

// needsTwo reports whether a convention divides by W - 1 or compares a member with the others. It then needs a total
// weight W above 1.
func needsTwo(c mgrpo.Convention) bool {
	return c.Std == mgrpo.StdSample || c.Baseline != mgrpo.BaselineMean
}

// checkGroup refuses a bad weight or reward, also of dropped members.
func checkGroup(c mgrpo.Convention, rewards, weights []float64) error {
	for i, w := range weights {
		if !(w >= 0) || math.IsInf(w, 0) {
			return &mgrpo.Refusal{Code: mgrpo.BadWeight, Index: new(i)}
		}
		if c.Baseline == mgrpo.BaselineLeaveOneOutStd && w != 0 && w != 1 {
			return &mgrpo.Refusal{Code: mgrpo.BadWeight, Index: new(i), Message: "leave_one_out_std takes unit weights only"}
		}
	}
	for i, r := range rewards {
		if math.IsNaN(r) || math.IsInf(r, 0) {
			return &mgrpo.Refusal{Code: mgrpo.NonFiniteReward, Index: new(i)}
		}
	}
	return nil
}

// groupStatistics computes the weighted mean first and then the deviations, because E[r^2] - mu^2 would lose digits.
// Rewards count as equal relative to the largest of their magnitudes and size. The mean of equal rewards is the
// smallest of them.
func groupStatistics(rewards, weights []float64, size float64) mgrpo.GroupStats {
	var g mgrpo.GroupStats
	least, most, sum := math.Inf(1), math.Inf(-1), 0.0
	for i, w := range weights {
		if w == 0 {
			continue
		}
		least, most, size = min(least, rewards[i]), max(most, rewards[i]), max(size, math.Abs(rewards[i]))
		g.WeightSum += w
		sum += w * rewards[i]
	}
	if g.WeightSum == 0 {
		g.Empty = true
		return g
	}
	if most-least <= rounding*size {
		g.Mean, g.Degenerate = least, true
		return g
	}
	g.Mean = sum / g.WeightSum
	squares := 0.0
	for i, w := range weights {
		if w > 0 {
			d := rewards[i] - g.Mean
			squares += w * d * d
		}
	}
	g.Std = math.Sqrt(squares / g.WeightSum)
	return g
}

func advantage(c mgrpo.Convention, g mgrpo.GroupStats, rewards, weights []float64, i int, r float64) float64 {
	centred := r - g.Mean
	if c.Baseline == mgrpo.BaselineLeaveOneOutStd {
		return leaveOneOutStd(c, rewards, weights, i)
	}
	switch {
	case c.Baseline == mgrpo.BaselineLeaveOneOut:
		return centred * g.WeightSum / (g.WeightSum - 1)
	case c.Std == mgrpo.StdSample:
		return centred / (g.Std*math.Sqrt(g.WeightSum/(g.WeightSum-1)) + c.Eps)
	case c.Std == mgrpo.StdPopulation:
		return centred / (g.Std + c.Eps)
	default:
		return centred
	}
}

// leaveOneOutStd subtracts the mean of the other members and divides by their sample std, unless they are equal.
func leaveOneOutStd(c mgrpo.Convention, rewards, weights []float64, i int) float64 {
	others := make([]float64, len(weights))
	copy(others, weights)
	others[i] = 0
	o := groupStatistics(rewards, others, math.Abs(rewards[i]))
	if o.Degenerate || atMostOneUnit(o.WeightSum) {
		return rewards[i] - o.Mean
	}
	return (rewards[i] - o.Mean) / (o.Std*math.Sqrt(o.WeightSum/(o.WeightSum-1)) + c.Eps)
}
