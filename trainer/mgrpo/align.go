package mgrpo

// AlignMode is the way to align the invocations of one sub-agent in a rollout, d_k of them, to the common count d.
type AlignMode string

const (
	AlignDraw     AlignMode = "draw"     // duplicate or drop invocations at random (equation 11)
	AlignBalanced AlignMode = "balanced" // weight d/d_k, the expectation of draw
	AlignNone     AlignMode = "none"     // weight 1: a rollout with more calls has more weight
)

// Align is the alignment of one sub-agent.
type Align struct {
	Mode AlignMode `json:"mode"`
	D    int       `json:"d"` // aligned count; choose it so that P(d_k <= d) is near 0.99
}

// Draw aligns dk invocations to d by duplicating or dropping (equation 11). A copy would have the reward, the advantage
// and the tokens of its original, so copies are counted as an integer multiplicity. Draw returns the multiplicity of
// each invocation (their sum is d, or 0 if dk is 0) and the draws in order.
func Draw(key [2]uint32, d, dk int) (multiplicity []int, draws []uint32) {
	multiplicity, draws = make([]int, dk), []uint32{}
	if dk == 0 {
		return multiplicity, draws
	}
	for i := range multiplicity {
		multiplicity[i] = 1
	}
	for t := 0; t < d-dk; t++ {
		x, _ := Bounded(key, uint64(t), uint32(dk))
		draws = append(draws, x)
		multiplicity[x]++
	}
	if dk > d {
		draws = dropExcess(key, d, multiplicity)
	}
	return multiplicity, draws
}

// dropExcess sets all but d multiplicities to 0 by a partial Fisher-Yates shuffle.
func dropExcess(key [2]uint32, d int, multiplicity []int) (draws []uint32) {
	dk := len(multiplicity)
	index := make([]int, dk)
	for i := range index {
		index[i] = i
	}
	for t := range dk - d {
		x, _ := Bounded(key, uint64(t), uint32(dk-t))
		draws = append(draws, x)
		p := t + int(x)
		index[t], index[p] = index[p], index[t]
		multiplicity[index[t]] = 0
	}
	return draws
}

// Weights returns the weights of the dk invocations of one rollout, in the order in which the calls were issued. Weight
// 0 means dropped. rollout is the number k of the rollout, even if other rollouts were removed.
func (a Align) Weights(runSeed uint64, query string, rollout int, agent string, dk int) []float64 {
	weights := make([]float64, dk)
	switch a.Mode {
	case AlignDraw:
		multiplicity, _ := Draw(AlignKey(runSeed, query, rollout, agent), a.D, dk)
		for i, m := range multiplicity {
			weights[i] = float64(m)
		}
	case AlignBalanced:
		for i := range weights {
			weights[i] = float64(a.D) / float64(dk)
		}
	default:
		for i := range weights {
			weights[i] = 1
		}
	}
	return weights
}
