package oracle

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// average accumulates a weighted mean and the largest and smallest value.
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

// statsCollector collects the statistics of a batch while its loss is computed.
type statsCollector struct {
	o                                          objective
	clipLow, clipHigh, dual, rho, k1, k3       average
	clamped, entropy, refKL, tisV, tisCut, gap average
	tokens                                     int64
}

func newStatsCollector(o objective) *statsCollector { return &statsCollector{o: o} }

// token records one trained token; r is its ratio.
func (m *statsCollector) token(b Batch, j, t int, advantage float64, r *ratio) {
	w := b.Weight[j]
	m.tokens++
	delta, _ := m.o.clamp(b.New[t] - b.Old[t])
	m.rho.add(w, r.rho)
	m.k1.add(w, -delta)
	m.k3.add(w, math.Expm1(delta)-delta)
	m.clamped.flag(w, !r.inside)
	if m.o.Ratio == mgrpo.RatioCISPO {
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

// tis returns the truncated importance weight v of one token, or 1 if tis_cap is off.
func (m *statsCollector) tis(b Batch, j, t int) float64 {
	if m.o.TISCap == nil {
		return 1
	}
	raw := math.Exp(b.Old[t] - b.Behaviour[t])
	v := min(raw, *m.o.TISCap)
	m.tisV.add(b.Weight[j], v)
	m.tisCut.flag(b.Weight[j], raw > *m.o.TISCap)
	return v
}

// report writes all statistics except the loss and its parts to s; read is positive for the trajectories that the loss
// reads.
func (m *statsCollector) report(b Batch, read []float64, s *mgrpo.LossStats) {
	s.Tokens, s.WeightedTokens = m.tokens, m.rho.weight
	s.ClipFracLow, s.ClipFracHigh, s.DualClipFrac = m.clipLow.mean(), m.clipHigh.mean(), m.dual.mean()
	s.RatioMean, s.RatioMin, s.RatioMax = m.rho.mean(), m.rho.low, m.rho.high
	s.ApproxKLK1, s.ApproxKLK3, s.LogRatioClampedFrac = m.k1.mean(), m.k3.mean(), m.clamped.mean()
	groups := map[int64]bool{}
	for j, c := range read {
		if c > 0 {
			s.Trajectories++
			groups[b.Group[j]] = true
		} else if b.Weight[j] > 0 {
			s.EmptyTrajectories++
		}
	}
	s.Groups = int64(len(groups))
	s.EntropyMean, s.RefKLMean = m.entropy.optional(), m.refKL.optional()
	s.TISMean, s.TISTruncatedFrac, s.BehaviourGapMean = m.tisV.optional(), m.tisCut.optional(), m.gap.optional()
	if s.TISMean != nil {
		s.TISMax = new(m.tisV.high)
	}
	if s.BehaviourGapMean != nil {
		s.BehaviourGapMax = new(m.gap.high)
	}
}

func (a *average) optional() *float64 {
	if a.weight == 0 {
		return nil
	}
	return new(a.mean())
}
