package oracle

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Batch is the input of one optimizer step: n trajectories, packed without padding. Trajectory j is tokens
// CuSeqlens[j]:CuSeqlens[j+1]. Log-probs are of the sampled tokens under softmax(logits/tau), in nats. Loss reads only
// tokens with Mask in trajectories with positive weight; the others may be NaN.
type Batch struct {
	CuSeqlens []int     // [n+1]
	Group     []int64   // [n], arbitrary ids
	Weight    []float64 // [n], 0: dropped
	Advantage []float64 // [n]
	Mask      []bool    // [tokens], sampled by the policy being trained
	New       []float64 // [tokens], current policy
	Old       []float64 // [tokens], policy at the start of the batch
	Behaviour []float64 // [tokens] or nil, sampling engine
	Ref       []float64 // [tokens] or nil, reference model
	Entropy   []float64 // [tokens] or nil
}

// LossResult holds the loss to minimise, its parts and statistics, and its gradient.
type LossResult struct {
	Stats    mgrpo.LossStats
	Coef     []float64 // [n], c_j; 0 for trajectories that are not read
	DLogProb []float64 // [tokens], dL/dNew
	DEntropy []float64 // [tokens], dL/dEntropy
}

// Loss computes the policy loss of a batch. It refuses bad data with a *mgrpo.Refusal.
func Loss(options mgrpo.Objective, b Batch) (LossResult, error) {
	o := objective(options)
	coef, err := o.coefficients(b)
	if err != nil {
		return LossResult{}, err
	}
	if err := o.checkInputs(b, coef); err != nil {
		return LossResult{}, err
	}
	out := LossResult{Coef: coef, DLogProb: make([]float64, len(b.Mask)), DEntropy: make([]float64, len(b.Mask))}
	meter := newStatsCollector(o)
	for j, c := range coef {
		if c == 0 {
			continue
		}
		if err := o.trajectory(b, j, c, &out, meter); err != nil {
			return LossResult{}, err
		}
	}
	out.Stats.Loss = out.Stats.LossPolicy + out.Stats.LossKL + out.Stats.LossEntropy
	meter.report(b, coef, &out.Stats)
	return out, out.checkFinite()
}

// coefficients returns the token coefficients c_j of the aggregation, 0 for trajectories that are not read. They depend
// on the whole batch, so they must be computed before splitting it. It refuses a bad weight and an empty batch.
func (o objective) coefficients(b Batch) ([]float64, error) {
	if err := b.checkShape(); err != nil {
		return nil, err
	}
	groupWeight, tokenWeight := map[int64]float64{}, 0.0
	tokens := make([]float64, len(b.Weight))
	for j, w := range b.Weight {
		if !(w >= 0) || math.IsInf(w, 0) {
			return nil, &mgrpo.Refusal{Code: mgrpo.BadWeight, Trajectory: new(j)}
		}
		tokens[j] = float64(b.trained(j))
		if w > 0 && tokens[j] > 0 {
			groupWeight[b.Group[j]] += w
			tokenWeight += w * tokens[j]
		}
	}
	if len(groupWeight) == 0 {
		return nil, &mgrpo.Refusal{Code: mgrpo.EmptyBatch}
	}
	coef := make([]float64, len(b.Weight))
	for j, w := range b.Weight {
		if w == 0 || tokens[j] == 0 {
			continue
		}
		switch groups := float64(len(groupWeight)); o.Aggregation {
		case mgrpo.TokenMean:
			coef[j] = w / tokenWeight
		case mgrpo.ConstantLength:
			coef[j] = w / (groups * groupWeight[b.Group[j]] * float64(o.MaxLength))
		default:
			coef[j] = w / (groups * groupWeight[b.Group[j]] * tokens[j])
		}
	}
	return coef, nil
}

// trajectory adds trajectory j to the loss, its gradient and the statistics.
func (o objective) trajectory(b Batch, j int, c float64, out *LossResult, m *statsCollector) error {
	advantage := b.Advantage[j]
	sequence, err := o.sequenceRatio(b, j)
	if err != nil {
		return err
	}
	tisSum := 0.0
	for t := b.CuSeqlens[j]; t < b.CuSeqlens[j+1]; t++ {
		if !b.Mask[t] {
			continue
		}
		v := m.tis(b, j, t)
		r := sequence
		if r == nil {
			r = o.ratio(b.New[t]-b.Old[t], 1)
		}
		loss, slope := o.term(advantage, r, b.New[t])
		out.Stats.LossPolicy += c * v * loss
		if sequence == nil {
			out.DLogProb[t] = c * v * slope
		}
		tisSum += v
		m.token(b, j, t, advantage, r)
		if err := o.regularise(b, j, t, c, out, m); err != nil {
			return err
		}
	}
	if sequence != nil { // the gradient of each token passes through the ratio that all tokens of the sequence share
		_, slope := o.term(advantage, sequence, 0)
		for t := b.CuSeqlens[j]; t < b.CuSeqlens[j+1]; t++ {
			if b.Mask[t] {
				out.DLogProb[t] += c * tisSum * slope
			}
		}
	}
	return nil
}

// regularise adds the KL and entropy terms of one token.
func (o objective) regularise(b Batch, j, t int, c float64, out *LossResult, m *statsCollector) error {
	if o.KL != mgrpo.KLNone && b.Ref != nil {
		x, inside := o.clamp(b.New[t] - b.Ref[t])
		if o.KL == mgrpo.KL3 && -x > maxExponent {
			return &mgrpo.Refusal{Code: mgrpo.RatioOverflow, Field: "ref_kl", Trajectory: new(j)}
		}
		value, slope := penalty(o.KL, x)
		m.refKL.add(b.Weight[j], value)
		out.Stats.LossKL += o.KLCoef * c * value
		if inside {
			out.DLogProb[t] += o.KLCoef * c * slope
		}
	}
	out.DEntropy[t] = -o.EntropyCoef * c
	if b.Entropy != nil {
		out.Stats.LossEntropy -= o.EntropyCoef * c * b.Entropy[t]
	}
	return nil
}

// ratio is the importance ratio of a token or of a sequence.
type ratio struct {
	rho    float64
	share  float64 // d ln rho / d new_t
	inside bool    // the clamp passes the gradient
}

func (o objective) ratio(logRatio, share float64) *ratio {
	x, inside := o.clamp(logRatio)
	return &ratio{rho: math.Exp(x), share: share, inside: inside}
}

// sequenceRatio returns the ratio of trajectory j in the sequence modes, and nil in the token modes. In all modes it
// refuses an exponent that overflows float32 after the clamp.
func (o objective) sequenceRatio(b Batch, j int) (*ratio, error) {
	sum, n := 0.0, 0.0
	overflow := &mgrpo.Refusal{Code: mgrpo.RatioOverflow, Field: "ratio", Trajectory: new(j)}
	for t := b.CuSeqlens[j]; t < b.CuSeqlens[j+1]; t++ {
		if b.Mask[t] {
			delta := b.New[t] - b.Old[t]
			if x, _ := o.clamp(delta); x > maxExponent {
				return nil, overflow
			}
			sum += delta
			n++
		}
	}
	var r *ratio
	switch o.Ratio {
	case mgrpo.RatioSequenceProduct:
		r = o.ratio(sum, 1)
	case mgrpo.RatioSequenceGeometric:
		sum /= n
		r = o.ratio(sum, 1/n)
	default:
		return nil, nil
	}
	if x, _ := o.clamp(sum); x > maxExponent {
		return nil, overflow
	}
	return r, nil
}

// term returns l and dl/dnew_t. Only CISPO reads logProb, because no gradient passes through its ratio.
func (o objective) term(advantage float64, r *ratio, logProb float64) (loss, slope float64) {
	if o.Ratio == mgrpo.RatioCISPO {
		low, high := o.cispoBounds()
		bounded := min(max(r.rho, low), high)
		return -bounded * advantage * logProb, -bounded * advantage
	}
	loss, slope = o.policyTerm(advantage, r.rho)
	if !r.inside {
		slope = 0
	}
	return loss, slope * r.share
}

func (b Batch) trained(j int) (n int) {
	for _, sampled := range b.Mask[b.CuSeqlens[j]:b.CuSeqlens[j+1]] {
		if sampled {
			n++
		}
	}
	return n
}

func (b Batch) checkShape() error {
	n := len(b.Weight)
	if len(b.CuSeqlens) != n+1 || len(b.Group) != n || len(b.Advantage) != n {
		return fmt.Errorf("oracle: batch with %d weights has %d boundaries, %d groups, %d advantages", n, len(b.CuSeqlens), len(b.Group), len(b.Advantage))
	}
	for j := range n {
		if b.CuSeqlens[j] > b.CuSeqlens[j+1] {
			return fmt.Errorf("oracle: batch: boundaries fall after trajectory %d", j)
		}
	}
	if b.CuSeqlens[0] != 0 || b.CuSeqlens[n] != len(b.Mask) {
		return fmt.Errorf("oracle: batch: boundaries run from %d to %d over %d tokens", b.CuSeqlens[0], b.CuSeqlens[n], len(b.Mask))
	}
	for _, f := range b.fields() {
		if f.values != nil && len(f.values) != len(b.Mask) {
			return fmt.Errorf("oracle: batch: %s has %d values for %d tokens", f.name, len(f.values), len(b.Mask))
		}
	}
	return nil
}

func (r *LossResult) checkFinite() error {
	if !finite(r.Stats.Loss) {
		return &mgrpo.Refusal{Code: mgrpo.NonFiniteValue, Field: "loss"}
	}
	for t := range r.DLogProb {
		if !finite(r.DLogProb[t]) || !finite(r.DEntropy[t]) {
			return &mgrpo.Refusal{Code: mgrpo.NonFiniteValue, Field: "gradient", Token: new(t)}
		}
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
