package mgrpo

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"pgregory.net/rapid"
)

type goldenBatch struct {
	CuSeqlens []int `json:"cu_seqlens"`
	Group     []int64
	Weight    []Number
	Advantage []Number
	Mask      []int
	New       []Number `json:"logp_new"`
	Old       []Number `json:"logp_old"`
	Behaviour []Number `json:"logp_behaviour"`
	Ref       []Number `json:"logp_ref"`
	Entropy   []Number
}

func (g goldenBatch) batch() Batch {
	b := Batch{
		CuSeqlens: g.CuSeqlens, Group: g.Group, Weight: Floats(g.Weight), Advantage: Floats(g.Advantage),
		New: Floats(g.New), Old: Floats(g.Old), Behaviour: Floats(g.Behaviour), Ref: Floats(g.Ref), Entropy: Floats(g.Entropy),
	}
	for _, m := range g.Mask {
		b.Mask = append(b.Mask, m == 1)
	}
	return b
}

type goldenLoss struct {
	Loss        float64
	LossPolicy  float64            `json:"loss_policy"`
	LossKL      float64            `json:"loss_kl"`
	LossEntropy float64            `json:"loss_entropy"`
	TokenCoef   []float64          `json:"token_coef"`
	DLogProb    []float64          `json:"dlogp_new"`
	DEntropy    []float64          `json:"dentropy"`
	Stats       map[string]float64 // compared by name, so that none is forgotten
	Error       *Refusal
}

// compare checks a loss, or its refusal, against the expectation at the goldens' tolerance.
func (want goldenLoss) compare(t *testing.T, what string, got LossResult, err error, tolerance float64) {
	t.Helper()
	if want.Error != nil {
		sameRefusal(t, what, err, *want.Error)
		return
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	near(t, what+": loss", got.Loss, want.Loss, tolerance)
	near(t, what+": policy", got.Policy, want.LossPolicy, tolerance)
	near(t, what+": kl", got.KL, want.LossKL, tolerance)
	near(t, what+": entropy", got.Entropy, want.LossEntropy, tolerance)
	if want.TokenCoef != nil {
		nearAll(t, what+": token_coef", got.Coef, want.TokenCoef, tolerance)
	}
	if want.DLogProb != nil {
		nearAll(t, what+": dlogp_new", got.DLogProb, want.DLogProb, tolerance)
	}
	if want.DEntropy != nil {
		nearAll(t, what+": dentropy", got.DEntropy, want.DEntropy, tolerance)
	}
	raw, _ := json.Marshal(got.Stats)
	var stats map[string]float64
	if err := json.Unmarshal(raw, &stats); err != nil {
		t.Fatal(err)
	}
	for name, x := range want.Stats {
		y, ok := stats[name]
		if !ok {
			t.Errorf("%s: statistic %s is absent", what, name)
			continue
		}
		near(t, what+": "+name, y, x, tolerance)
	}
	for name := range stats {
		if _, ok := want.Stats[name]; !ok {
			t.Errorf("%s: statistic %s is not expected", what, name)
		}
	}
}

func TestLossGolden(t *testing.T) {
	var f struct {
		Defaults Objective
		Batches  map[string]goldenBatch
		Cases    []struct {
			Name, Batch string
			Config      Objective
			Expect      goldenLoss
		}
	}
	load(t, "losses.json", &f)
	def, _ := json.Marshal(DefaultObjective())
	if want, _ := json.Marshal(f.Defaults); string(def) != string(want) {
		t.Errorf("defaults are %s, want %s", def, want)
	}
	for _, c := range f.Cases {
		if err := c.Config.Validate(); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		got, err := c.Config.Loss(f.Batches[c.Batch].batch())
		c.Expect.compare(t, c.Name, got, err, 1e-12)
	}
	golden.Count("mgrpo/losses", len(f.Cases))
}

func TestLossLongGolden(t *testing.T) {
	var f struct {
		Cases map[string]struct {
			Config Objective
			Expect goldenLoss
		}
	}
	load(t, "losses_long.json", &f)
	a := loadArrays(t, "losses_long.safetensors")
	b := Batch{
		CuSeqlens: a["cu_seqlens"].ints(), Weight: a["weight"], Advantage: a["advantage"], New: a["logp_new"],
		Old: a["logp_old"], Behaviour: a["logp_behaviour"], Ref: a["logp_ref"], Entropy: a["entropy"],
	}
	for _, g := range a["group"] {
		b.Group = append(b.Group, int64(g))
	}
	for _, m := range a["mask"] {
		b.Mask = append(b.Mask, m == 1)
	}
	for name, c := range f.Cases {
		c.Expect.DLogProb = a["dlogp_new."+name]
		got, err := c.Config.Loss(b)
		c.Expect.compare(t, name, got, err, 1e-11)
	}
	golden.Count("mgrpo/losses_long", len(f.Cases))
}

func TestNonFiniteGolden(t *testing.T) {
	var f struct {
		Base  json.RawMessage
		Cases []struct {
			Name   string
			Config Objective
			Edits  []struct {
				Field string
				Index int
				Value any
			}
			Absent string
			Expect goldenLoss
		}
	}
	load(t, "nonfinite.json", &f)
	for _, c := range f.Cases {
		var fields map[string]any
		if err := json.Unmarshal(f.Base, &fields); err != nil {
			t.Fatal(err)
		}
		for _, e := range c.Edits {
			fields[e.Field].([]any)[e.Index] = e.Value
		}
		delete(fields, c.Absent)
		raw, _ := json.Marshal(fields)
		var g goldenBatch
		if err := json.Unmarshal(raw, &g); err != nil {
			t.Fatal(err)
		}
		got, err := c.Config.Loss(g.batch())
		c.Expect.compare(t, c.Name, got, err, 1e-12)
	}
	golden.Count("mgrpo/nonfinite", len(f.Cases))
}

// The gradient is that of the loss: central differences of a random batch away from the kinks.
func TestLossGradientIsDerivative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := DefaultObjective()
		o.Ratio = rapid.SampledFrom([]Ratio{RatioToken, RatioSequenceProduct, RatioSequenceGeometric}).Draw(t, "ratio")
		o.Aggregation = rapid.SampledFrom([]Aggregation{TrajectoryMean, TokenMean}).Draw(t, "aggregation")
		o.KL, o.KLCoef, o.EntropyCoef, o.TISCap = KL3, 0.1, 0.05, new(2.0)
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
		got, err := o.Loss(b)
		if err != nil {
			t.Fatal(err)
		}
		const h = 1e-6
		moved := func(x float64) LossResult {
			c := b
			c.New = append([]float64(nil), b.New...)
			c.New[at] += x
			r, err := o.Loss(c)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		up, down := moved(h), moved(-h)
		if up.Stats.ClipFracLow != down.Stats.ClipFracLow || up.Stats.ClipFracHigh != down.Stats.ClipFracHigh {
			t.Skip("on a kink")
		}
		slope := (up.Loss - down.Loss) / (2 * h)
		if math.Abs(slope-got.DLogProb[at]) > 1e-6*max(1, math.Abs(slope)) {
			t.Fatalf("token %d: gradient %v, difference quotient %v", at, got.DLogProb[at], slope)
		}
	})
}

func TestBatchShape(t *testing.T) {
	good := Batch{CuSeqlens: []int{0, 1}, Group: []int64{0}, Weight: []float64{1}, Advantage: []float64{1}, Mask: []bool{true}, New: []float64{-1}, Old: []float64{-1}}
	if _, err := DefaultObjective().Loss(good); err != nil {
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
		if _, err := DefaultObjective().Loss(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
