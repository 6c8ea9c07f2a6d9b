package oracle

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"pgregory.net/rapid"
)

// batchOf returns a golden batch as the oracle's input.
func batchOf(g algorithm.Batch) Batch {
	b := Batch{
		Group: g.Group, Weight: mgrpo.Floats(g.Weight), Advantage: mgrpo.Floats(g.Advantage),
		New: mgrpo.Floats(g.New), Old: mgrpo.Floats(g.Old), Behaviour: mgrpo.Floats(g.Behaviour), Ref: mgrpo.Floats(g.Ref), Entropy: mgrpo.Floats(g.Entropy),
	}
	for _, at := range g.CuSeqlens {
		b.CuSeqlens = append(b.CuSeqlens, int(at))
	}
	for _, m := range g.Mask {
		b.Mask = append(b.Mask, m == 1)
	}
	return b
}

// compareLoss checks a loss, or its refusal, against the expectation at the goldens' tolerance.
func compareLoss(t *testing.T, what string, got LossResult, err error, want algorithm.Loss, tolerance float64) {
	t.Helper()
	if want.Error != nil {
		golden.SameError(t, what, err, *want.Error)
		return
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	algorithm.CompareLoss(t, what, algorithm.Result[float64]{Stats: got.Stats, Coefficient: got.Coef, DLogProb: got.DLogProb, DEntropy: got.DEntropy},
		want, tolerance, tolerance)
}

func compareLosses(t *testing.T, cases []algorithm.LossCase, tolerance float64) {
	t.Helper()
	for _, c := range cases {
		got, err := Loss(c.Config, batchOf(c.Batch))
		compareLoss(t, c.Name, got, err, c.Expect, tolerance)
	}
}

func TestLossGolden(t *testing.T) {
	defaults, cases := algorithm.Losses(t)
	def, _ := json.Marshal(mgrpo.DefaultObjective())
	if want, _ := json.Marshal(defaults); string(def) != string(want) {
		t.Errorf("defaults are %s, want %s", def, want)
	}
	compareLosses(t, cases, 1e-12)
	golden.Count("mgrpo/losses", len(cases))
}

func TestLossLongGolden(t *testing.T) {
	cases := algorithm.LongLosses(t)
	compareLosses(t, cases, 1e-11)
	golden.Count("mgrpo/losses_long", len(cases))
}

func TestNonFiniteGolden(t *testing.T) {
	cases := algorithm.NonFiniteLosses(t)
	compareLosses(t, cases, 1e-12)
	golden.Count("mgrpo/nonfinite", len(cases))
}

// The gradient is the derivative of the loss: central differences of a random batch away from the kinks.
func TestLossGradientIsDerivative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := mgrpo.DefaultObjective()
		o.Ratio = rapid.SampledFrom([]mgrpo.Ratio{mgrpo.RatioToken, mgrpo.RatioSequenceProduct, mgrpo.RatioSequenceGeometric}).Draw(t, "ratio")
		o.Aggregation = rapid.SampledFrom([]mgrpo.Aggregation{mgrpo.TrajectoryMean, mgrpo.TokenMean}).Draw(t, "aggregation")
		o.KL, o.KLCoef, o.EntropyCoef, o.TISCap = mgrpo.KL3, 0.1, 0.05, new(2.0)
		b := Batch{CuSeqlens: []int{0, 3, 7, 9}, Group: []int64{4, 4, 9}, Weight: []float64{2, 1, 0.5}, Mask: make([]bool, 9)}
		logProb := func(name string) []float64 {
			return rapid.SliceOfN(rapid.Map(rapid.IntRange(-300, -1), func(i int) float64 { return float64(i) / 100 }), 9, 9).Draw(t, name)
		}
		b.New, b.Old, b.Behaviour, b.Ref = logProb("new"), logProb("old"), logProb("behaviour"), logProb("ref")
		b.Advantage = []float64{1.25, -0.75, 0.5}
		b.Entropy = make([]float64, 9)
		for i := range b.Mask {
			b.Mask[i] = i != 1
		}
		at := rapid.IntRange(0, 8).Draw(t, "token")
		got, err := Loss(o, b)
		if err != nil {
			t.Fatal(err)
		}
		const h = 1e-6
		moved := func(x float64) LossResult {
			c := b
			c.New = append([]float64(nil), b.New...)
			c.New[at] += x
			r, err := Loss(o, c)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		up, down := moved(h), moved(-h)
		if up.Stats.ClipFracLow != down.Stats.ClipFracLow || up.Stats.ClipFracHigh != down.Stats.ClipFracHigh {
			t.Skip("on a kink")
		}
		slope := (up.Stats.Loss - down.Stats.Loss) / (2 * h)
		if math.Abs(slope-got.DLogProb[at]) > 1e-6*max(1, math.Abs(slope)) {
			t.Fatalf("token %d: gradient %v, difference quotient %v", at, got.DLogProb[at], slope)
		}
	})
}

func TestBatchShape(t *testing.T) {
	good := Batch{CuSeqlens: []int{0, 1}, Group: []int64{0}, Weight: []float64{1}, Advantage: []float64{1}, Mask: []bool{true}, New: []float64{-1}, Old: []float64{-1}}
	if _, err := Loss(mgrpo.DefaultObjective(), good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Batch){
		"no boundaries":    func(b *Batch) { b.CuSeqlens = nil },
		"boundary outside": func(b *Batch) { b.CuSeqlens = []int{0, 2} },
		"negative":         func(b *Batch) { b.CuSeqlens = []int{-1, 1} },
		"short array":      func(b *Batch) { b.New = []float64{} },
		"no groups":        func(b *Batch) { b.Group = nil },
	} {
		b := good
		spoil(&b)
		if _, err := Loss(mgrpo.DefaultObjective(), b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
