package mgrpo

import "math"

// GroupAdvantage is a normalised group. Mean, Std and WeightSum are over members of positive weight.
type GroupAdvantage struct {
	Advantage  []float64 // [members]; 0 where the weight is 0
	Mean       float64
	Std        float64 // population standard deviation, whatever the convention divides by
	WeightSum  float64
	Degenerate bool // nothing to learn: every advantage is 0
	Empty      bool // no member of positive weight
}

// RewardGroup is a group as a normaliser takes it. Weights nil means all 1.
type RewardGroup struct{ Rewards, Weights []float64 }

// Normaliser turns ragged groups into advantages: the float64 oracle Convention.Normalise or a kernel.
type Normaliser func(Convention, []RewardGroup) ([]GroupAdvantage, error)

// Totals counts the groups of a step.
type Totals struct {
	Groups     int `json:"groups"` // groups with rows
	Degenerate int `json:"degenerate"`
	Empty      int `json:"empty"`
}

// Count sums up normalised groups.
func Count(groups []GroupAdvantage) (t Totals) {
	for _, g := range groups {
		switch {
		case g.Empty:
			t.Empty++
		case g.Degenerate:
			t.Degenerate++
			t.Groups++
		default:
			t.Groups++
		}
	}
	return t
}

// Normalise is the reference Normaliser, in float64 with two passes. The first bad group ends it with a
// *Refusal that names the member, and the group when there are several.
func Normalise(c Convention, groups []RewardGroup) ([]GroupAdvantage, error) {
	out := make([]GroupAdvantage, len(groups))
	for i, g := range groups {
		a, err := c.normalise(g.Rewards, g.Weights)
		if err != nil {
			if r, ok := err.(*Refusal); ok && len(groups) > 1 {
				r.Group = new(i)
			}
			return nil, err
		}
		out[i] = a
	}
	return out, nil
}

func (c Convention) normalise(rewards, weights []float64) (GroupAdvantage, error) {
	if weights == nil {
		weights = make([]float64, len(rewards))
		for i := range weights {
			weights[i] = 1
		}
	}
	if err := c.checkGroup(rewards, weights); err != nil {
		return GroupAdvantage{}, err
	}
	g := groupStatistics(rewards, weights)
	g.Advantage = make([]float64, len(rewards))
	g.Degenerate = g.Degenerate || (!g.Empty && (g.Std < c.SigmaMin || g.Std == 0 || (c.needsTwo() && g.WeightSum <= 1)))
	if g.Empty || g.Degenerate {
		return g, nil
	}
	if math.IsNaN(g.Std) || math.IsInf(g.Std, 0) {
		return GroupAdvantage{}, &Refusal{Code: NonFiniteValue, Field: "std", Message: "the rewards' spread overflows"}
	}
	for i, r := range rewards {
		if weights[i] > 0 {
			g.Advantage[i] = c.advantage(g, rewards, weights, i, r)
		}
	}
	return g, nil
}

// needsTwo tells the conventions that divide by W - 1 or compare a member with the others: they are defined for a total
// weight above 1.
func (c Convention) needsTwo() bool { return c.Std == StdSample || c.Baseline != BaselineMean }

// checkGroup refuses a bad weight or reward, dropped members included.
func (c Convention) checkGroup(rewards, weights []float64) error {
	if len(weights) != len(rewards) {
		return &Refusal{Code: MalformedInput, Field: "weights", Message: "rewards and weights differ in length"}
	}
	for i, w := range weights {
		if !(w >= 0) || math.IsInf(w, 0) {
			return &Refusal{Code: BadWeight, Index: new(i)}
		}
		if c.Baseline == BaselineLeaveOneOutStd && w != 0 && w != 1 {
			return &Refusal{Code: BadWeight, Index: new(i), Message: "leave_one_out_std takes unit weights only"}
		}
	}
	for i, r := range rewards {
		if math.IsNaN(r) || math.IsInf(r, 0) {
			return &Refusal{Code: NonFiniteReward, Index: new(i)}
		}
	}
	return nil
}

// groupStatistics takes the weighted mean first and the deviations after: E[r^2] - mu^2 would cancel.
func groupStatistics(rewards, weights []float64) GroupAdvantage {
	var g GroupAdvantage
	first, sum, identical := math.NaN(), 0.0, true
	for i, w := range weights {
		if w == 0 {
			continue
		}
		if g.WeightSum == 0 {
			first = rewards[i]
		}
		identical = identical && rewards[i] == first
		g.WeightSum += w
		sum += w * rewards[i]
	}
	if g.WeightSum == 0 {
		g.Empty = true
		return g
	}
	if identical {
		g.Mean, g.Degenerate = first, true
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

func (c Convention) advantage(g GroupAdvantage, rewards, weights []float64, i int, r float64) float64 {
	centred := r - g.Mean
	if c.Baseline == BaselineLeaveOneOutStd {
		return c.leaveOneOutStd(rewards, weights, i)
	}
	switch {
	case c.Baseline == BaselineLeaveOneOut:
		return centred * g.WeightSum / (g.WeightSum - 1)
	case c.Std == StdSample:
		return centred / (g.Std*math.Sqrt(g.WeightSum/(g.WeightSum-1)) + c.Eps)
	case c.Std == StdPopulation:
		return centred / (g.Std + c.Eps)
	default:
		return centred
	}
}

// leaveOneOutStd centres on the other members and divides by their sample std, unless they are identical.
func (c Convention) leaveOneOutStd(rewards, weights []float64, i int) float64 {
	others := make([]float64, len(weights))
	copy(others, weights)
	others[i] = 0
	o := groupStatistics(rewards, others)
	if o.Degenerate || o.WeightSum <= 1 {
		return rewards[i] - o.Mean
	}
	return (rewards[i] - o.Mean) / (o.Std*math.Sqrt(o.WeightSum/(o.WeightSum-1)) + c.Eps)
}
