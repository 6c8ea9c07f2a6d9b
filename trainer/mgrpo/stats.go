package mgrpo

import "math"

// Stats describe a batch. Means are over trained tokens, weighted by their trajectory's weight, so that
// copies and multiplicities agree. A nil pointer is a statistic without its input.
type Stats struct {
	Tokens              int      `json:"tokens"`
	WeightedTokens      float64  `json:"weighted_tokens"`
	Trajectories        int      `json:"trajectories"`       // that are read
	EmptyTrajectories   int      `json:"empty_trajectories"` // positive weight, no trained token
	Groups              int      `json:"groups"`
	ClipFracLow         float64  `json:"clip_frac_low"`
	ClipFracHigh        float64  `json:"clip_frac_high"`
	DualClipFrac        float64  `json:"dual_clip_frac"`
	RatioMean           float64  `json:"ratio_mean"`
	RatioMin            float64  `json:"ratio_min"`
	RatioMax            float64  `json:"ratio_max"`
	ApproxKLK1          float64  `json:"approx_kl_k1"` // estimates KL(old || new)
	ApproxKLK3          float64  `json:"approx_kl_k3"`
	LogRatioClampedFrac float64  `json:"log_ratio_clamped_frac"`
	EntropyMean         *float64 `json:"entropy_mean,omitempty"`
	RefKLMean           *float64 `json:"ref_kl_mean,omitempty"`
	TISMean             *float64 `json:"tis_mean,omitempty"`
	TISMax              *float64 `json:"tis_max,omitempty"`
	TISTruncatedFrac    *float64 `json:"tis_truncated_frac,omitempty"`
	BehaviourGapMean    *float64 `json:"behaviour_gap_mean,omitempty"` // the weight-sync alarm
	BehaviourGapMax     *float64 `json:"behaviour_gap_max,omitempty"`
}

// average is a weighted mean with the largest and smallest value.
type average struct{ sum, weight, low, high float64 }

func (a *average) add(weight, x float64) {
	if a.weight == 0 {
		a.low, a.high = x, x
	}
	a.sum += weight * x
	a.weight += weight
	a.low, a.high = min(a.low, x), max(a.high, x)
}

func (a *average) flag(weight float64, on bool) {
	x := 0.0
	if on {
		x = 1
	}
	a.add(weight, x)
}

func (a *average) mean() float64 { return a.sum / a.weight }

// meter gathers the statistics of a batch while its loss is computed.
type meter struct {
	o                                          Objective
	clipLow, clipHigh, dual, rho, k1, k3       average
	clamped, entropy, refKL, tisV, tisCut, gap average
	tokens                                     int
}

func newMeter(o Objective) *meter { return &meter{o: o} }

// token records one trained token; r is the ratio it was given.
func (m *meter) token(b Batch, j, t int, advantage float64, r *ratio) {
	w := b.Weight[j]
	m.tokens++
	delta, _ := m.o.clamp(b.New[t] - b.Old[t])
	m.rho.add(w, r.rho)
	m.k1.add(w, -delta)
	m.k3.add(w, math.Expm1(delta)-delta)
	m.clamped.flag(w, !r.inside)
	if m.o.Ratio == RatioCISPO {
		low, high := m.o.cispoBounds()
		m.clipLow.flag(w, r.rho < low)
		m.clipHigh.flag(w, r.rho > high)
		m.dual.flag(w, false)
	} else {
		m.clipLow.flag(w, advantage < 0 && r.rho < 1-m.o.EpsLow)
		m.clipHigh.flag(w, advantage > 0 && r.rho > 1+m.o.EpsHigh)
		m.dual.flag(w, m.o.DualClip != nil && advantage < 0 && r.rho > *m.o.DualClip)
	}
	if b.Entropy != nil {
		m.entropy.add(w, b.Entropy[t])
	}
	if b.Behaviour != nil {
		m.gap.add(w, math.Abs(b.Old[t]-b.Behaviour[t]))
	}
}

// tis is the truncated importance weight v of one token, 1 when it is off.
func (m *meter) tis(b Batch, j, t int) float64 {
	if m.o.TISCap == nil {
		return 1
	}
	raw := math.Exp(b.Old[t] - b.Behaviour[t])
	v := min(raw, *m.o.TISCap)
	m.tisV.add(b.Weight[j], v)
	m.tisCut.flag(b.Weight[j], raw > *m.o.TISCap)
	return v
}

func (m *meter) stats(b Batch, read []float64) Stats {
	s := Stats{
		Tokens: m.tokens, WeightedTokens: m.rho.weight,
		ClipFracLow: m.clipLow.mean(), ClipFracHigh: m.clipHigh.mean(), DualClipFrac: m.dual.mean(),
		RatioMean: m.rho.mean(), RatioMin: m.rho.low, RatioMax: m.rho.high,
		ApproxKLK1: m.k1.mean(), ApproxKLK3: m.k3.mean(), LogRatioClampedFrac: m.clamped.mean(),
	}
	groups := map[int64]bool{}
	for j, c := range read {
		if c > 0 {
			s.Trajectories++
			groups[b.Group[j]] = true
		} else if b.Weight[j] > 0 {
			s.EmptyTrajectories++
		}
	}
	s.Groups = len(groups)
	s.EntropyMean, s.RefKLMean = m.entropy.optional(), m.refKL.optional()
	s.TISMean, s.TISTruncatedFrac, s.BehaviourGapMean = m.tisV.optional(), m.tisCut.optional(), m.gap.optional()
	if s.TISMean != nil {
		s.TISMax = new(m.tisV.high)
	}
	if s.BehaviourGapMean != nil {
		s.BehaviourGapMax = new(m.gap.high)
	}
	return s
}

func (a *average) optional() *float64 {
	if a.weight == 0 {
		return nil
	}
	return new(a.mean())
}
