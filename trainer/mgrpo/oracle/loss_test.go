package oracle

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"pgregory.net/rapid"
)

type goldenBatch struct {
	CuSeqlens []int `json:"cu_seqlens"`
	Group     []int64
	Weight    []mgrpo.Number
	Advantage []mgrpo.Number
	Mask      []int
	New       []mgrpo.Number `json:"logp_new"`
	Old       []mgrpo.Number `json:"logp_old"`
	Behaviour []mgrpo.Number `json:"logp_behaviour"`
	Ref       []mgrpo.Number `json:"logp_ref"`
	Entropy   []mgrpo.Number
}

func (g goldenBatch) batch() Batch {
	b := Batch{
		CuSeqlens: g.CuSeqlens, Group: g.Group, Weight: mgrpo.Floats(g.Weight), Advantage: mgrpo.Floats(g.Advantage),
		New: mgrpo.Floats(g.New), Old: mgrpo.Floats(g.Old), Behaviour: mgrpo.Floats(g.Behaviour), Ref: mgrpo.Floats(g.Ref), Entropy: mgrpo.Floats(g.Entropy),
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
	Error       *mgrpo.Refusal
}

// compare checks a loss, or its refusal, against the expectation at the goldens' tolerance.
func (want goldenLoss) compare(t *testing.T, what string, got LossResult, err error, tolerance float64) {
	t.Helper()
	if want.Error != nil {
		golden.SameError(t, what, err, *want.Error)
		return
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	golden.Near(t, what+": loss", got.Stats.Loss, want.Loss, tolerance)
	golden.Near(t, what+": policy", got.Stats.LossPolicy, want.LossPolicy, tolerance)
	golden.Near(t, what+": kl", got.Stats.LossKL, want.LossKL, tolerance)
	golden.Near(t, what+": entropy", got.Stats.LossEntropy, want.LossEntropy, tolerance)
	if want.TokenCoef != nil {
		golden.NearAll(t, what+": token_coef", got.Coef, want.TokenCoef, tolerance)
	}
	if want.DLogProb != nil {
		golden.NearAll(t, what+": dlogp_new", got.DLogProb, want.DLogProb, tolerance)
	}
	if want.DEntropy != nil {
		golden.NearAll(t, what+": dentropy", got.DEntropy, want.DEntropy, tolerance)
	}
	stats := map[string]float64{}
	raw, _ := json.Marshal(got.Stats)
	if err := json.Unmarshal(raw, &stats); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"loss", "loss_policy", "loss_kl", "loss_entropy"} { // compared above
		delete(stats, part)
	}
	for name, x := range want.Stats {
		y, ok := stats[name]
		if !ok {
			t.Errorf("%s: statistic %s is absent", what, name)
			continue
		}
		golden.Near(t, what+": "+name, y, x, tolerance)
	}
	for name := range stats {
		if _, ok := want.Stats[name]; !ok {
			t.Errorf("%s: statistic %s is not expected", what, name)
		}
	}
}

func TestLossGolden(t *testing.T) {
	var f struct {
		Defaults mgrpo.Objective
		Batches  map[string]goldenBatch
		Cases    []struct {
			Name, Batch string
			Config      mgrpo.Objective
			Expect      goldenLoss
		}
	}
	golden.Read(t, "mgrpo", "losses.json", &f)
	def, _ := json.Marshal(mgrpo.DefaultObjective())
	if want, _ := json.Marshal(f.Defaults); string(def) != string(want) {
		t.Errorf("defaults are %s, want %s", def, want)
	}
	for _, c := range f.Cases {
		got, err := Loss(c.Config, f.Batches[c.Batch].batch())
		c.Expect.compare(t, c.Name, got, err, 1e-12)
	}
	golden.Count("mgrpo/losses", len(f.Cases))
}

func TestLossLongGolden(t *testing.T) {
	var f struct {
		Cases map[string]struct {
			Config mgrpo.Objective
			Expect goldenLoss
		}
	}
	golden.Read(t, "mgrpo", "losses_long.json", &f)
	a := golden.ReadTensors(t, golden.File(t, "mgrpo", "losses_long.safetensors"))
	b := Batch{
		Group: a["group"].Int64s(), Weight: a["weight"].Data, Advantage: a["advantage"].Data, New: a["logp_new"].Data,
		Old: a["logp_old"].Data, Behaviour: a["logp_behaviour"].Data, Ref: a["logp_ref"].Data, Entropy: a["entropy"].Data,
	}
	for _, at := range a["cu_seqlens"].Data {
		b.CuSeqlens = append(b.CuSeqlens, int(at))
	}
	for _, m := range a["mask"].Data {
		b.Mask = append(b.Mask, m == 1)
	}
	for name, c := range f.Cases {
		c.Expect.DLogProb = a["dlogp_new."+name].Data
		got, err := Loss(c.Config, b)
		c.Expect.compare(t, name, got, err, 1e-11)
	}
	golden.Count("mgrpo/losses_long", len(f.Cases))
}

func TestNonFiniteGolden(t *testing.T) {
	var f struct {
		Base  json.RawMessage
		Cases []struct {
			Name   string
			Config mgrpo.Objective
			Edits  []struct {
				Field string
				Index int
				Value any
			}
			Absent string
			Expect goldenLoss
		}
	}
	golden.Read(t, "mgrpo", "nonfinite.json", &f)
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
		got, err := Loss(c.Config, g.batch())
		c.Expect.compare(t, c.Name, got, err, 1e-12)
	}
	golden.Count("mgrpo/nonfinite", len(f.Cases))
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
