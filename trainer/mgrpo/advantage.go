package mgrpo

// GroupStats describes one group of rewards. Mean, Std and WeightSum are over members with positive weight.
type GroupStats struct {
	Mean       float64
	Std        float64 // population standard deviation, under every convention
	WeightSum  float64
	Degenerate bool // the group is not empty, but every advantage is 0
	Empty      bool // no member has positive weight
}

// GroupAdvantage is a normalised group.
type GroupAdvantage struct {
	GroupStats
	Advantage []float64 // [members]; 0 where the weight is 0
}

// RewardGroup is the input of a Normaliser for one group. Nil Weights mean that all weights are 1.
type RewardGroup struct{ Rewards, Weights []float64 }

// Check returns a *Refusal if the group has weights, but more or fewer than rewards.
func (g RewardGroup) Check() error {
	if g.Weights != nil && len(g.Weights) != len(g.Rewards) {
		return &Refusal{Code: MalformedInput, Field: "weights", Message: "rewards and weights differ in length"}
	}
	return nil
}

// InGroup adds the index of a group to a *Refusal, if there are several groups.
func InGroup(err error, index, groups int) error {
	if r, ok := err.(*Refusal); ok && groups > 1 {
		r.Group = new(index)
	}
	return err
}

// Normaliser converts groups of any size into advantages. It stops at the first bad group with a *Refusal that names
// the member and, if there are several groups, the group.
type Normaliser func(Convention, []RewardGroup) ([]GroupAdvantage, error)

// Totals counts the groups of a step.
type Totals struct {
	Groups     int `json:"groups"` // groups with rows
	Degenerate int `json:"degenerate"`
	Empty      int `json:"empty"`
}

// CountGroups returns the number of normalised groups of each kind.
func CountGroups(groups []GroupAdvantage) (t Totals) {
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
