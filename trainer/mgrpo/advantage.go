package mgrpo

// GroupStats describe one group of rewards. Mean, Std and WeightSum are over members of positive weight.
type GroupStats struct {
	Mean       float64
	Std        float64 // population standard deviation, whatever the convention divides by
	WeightSum  float64
	Degenerate bool // the group has members, and every advantage is 0
	Empty      bool // no member of positive weight
}

// GroupAdvantage is a normalised group.
type GroupAdvantage struct {
	GroupStats
	Advantage []float64 // [members]; 0 where the weight is 0
}

// RewardGroup is the input of a normaliser for one group. Nil Weights are all 1.
type RewardGroup struct{ Rewards, Weights []float64 }

// Normaliser turns groups of any sizes into advantages. It stops at the first bad group with a *Refusal that names the
// member and, if there are several groups, the group.
type Normaliser func(Convention, []RewardGroup) ([]GroupAdvantage, error)

// Totals counts the groups of a step.
type Totals struct {
	Groups     int `json:"groups"` // groups with rows
	Degenerate int `json:"degenerate"`
	Empty      int `json:"empty"`
}

// Count counts normalised groups by kind.
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
