package algorithm

import (
	"encoding/json"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Batch is a packed batch: trajectory j is tokens CuSeqlens[j]:CuSeqlens[j+1]. Absent fields of tokens are nil.
type Batch struct {
	CuSeqlens         []int64 `json:"cu_seqlens"`
	Group             []int64
	Weight, Advantage []mgrpo.Number
	Mask              []int          // 1: trained
	New               []mgrpo.Number `json:"logp_new"`
	Old               []mgrpo.Number `json:"logp_old"`
	Behaviour         []mgrpo.Number `json:"logp_behaviour"`
	Ref               []mgrpo.Number `json:"logp_ref"`
	Entropy           []mgrpo.Number
}

// Read marks the tokens that are read: trained ones of trajectories with a positive weight.
func (b Batch) Read() []bool {
	read := make([]bool, len(b.Mask))
	for j, w := range b.Weight {
		for i := b.CuSeqlens[j]; i < b.CuSeqlens[j+1]; i++ {
			read[i] = b.Mask[i] == 1 && w > 0
		}
	}
	return read
}

// batchOf reads a batch from the arrays of a safetensors file.
func batchOf(a golden.Tensors) Batch {
	b := Batch{
		CuSeqlens: a["cu_seqlens"].Int64s(), Group: a["group"].Int64s(), Weight: numbers(a["weight"].Data), Advantage: numbers(a["advantage"].Data),
		New: numbers(a["logp_new"].Data), Old: numbers(a["logp_old"].Data), Behaviour: numbers(a["logp_behaviour"].Data),
		Ref: numbers(a["logp_ref"].Data), Entropy: numbers(a["entropy"].Data),
	}
	for _, m := range a["mask"].Data {
		b.Mask = append(b.Mask, int(m))
	}
	return b
}

// Loss is the expected loss of a batch with its gradient, or the refusal. Nil arrays are not compared.
type Loss struct {
	Loss        mgrpo.Number
	LossPolicy  mgrpo.Number            `json:"loss_policy"`
	LossKL      mgrpo.Number            `json:"loss_kl"`
	LossEntropy mgrpo.Number            `json:"loss_entropy"`
	TokenCoef   []mgrpo.Number          `json:"token_coef"`
	DLogProb    []mgrpo.Number          `json:"dlogp_new"`
	DEntropy    []mgrpo.Number          `json:"dentropy"`
	Stats       map[string]mgrpo.Number // compared by name, so that none is forgotten
	Error       *mgrpo.Refusal
}

// Result is a loss to compare.
type Result[T ~float32 | ~float64] struct {
	Stats              mgrpo.LossStats
	Coefficient        []float64
	DLogProb, DEntropy []T
}

// CompareLoss checks a loss and its statistics with the tolerance `loss`, and its gradient with another one.
func CompareLoss[T ~float32 | ~float64](t testing.TB, what string, got Result[T], want Loss, loss, gradient float64) {
	t.Helper()
	golden.Near(t, what+": loss", got.Stats.Loss, float64(want.Loss), loss)
	golden.Near(t, what+": policy", got.Stats.LossPolicy, float64(want.LossPolicy), loss)
	golden.Near(t, what+": kl", got.Stats.LossKL, float64(want.LossKL), loss)
	golden.Near(t, what+": entropy", got.Stats.LossEntropy, float64(want.LossEntropy), loss)
	if want.TokenCoef != nil {
		golden.NearAll(t, what+": token_coef", got.Coefficient, want.TokenCoef, loss)
	}
	if want.DLogProb != nil {
		golden.NearAll(t, what+": dlogp_new", got.DLogProb, want.DLogProb, gradient)
	}
	if want.DEntropy != nil {
		golden.NearAll(t, what+": dentropy", got.DEntropy, want.DEntropy, gradient)
	}
	compareStats(t, what, got.Stats, want.Stats, loss)
}

// compareStats checks that the statistics are exactly the expected ones.
func compareStats(t testing.TB, what string, got mgrpo.LossStats, want map[string]mgrpo.Number, tolerance float64) {
	t.Helper()
	raw, err := json.Marshal(got)
	var stats map[string]float64
	if err == nil {
		err = json.Unmarshal(raw, &stats)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"loss", "loss_policy", "loss_kl", "loss_entropy"} { // compared by CompareLoss
		delete(stats, part)
	}
	for name, x := range want {
		if _, ok := stats[name]; !ok {
			t.Errorf("%s: statistic %s is absent", what, name)
			continue
		}
		golden.Near(t, what+": "+name, stats[name], float64(x), tolerance)
		delete(stats, name)
	}
	for name := range stats {
		t.Errorf("%s: statistic %s is not expected", what, name)
	}
}

// LossCase is a batch with its loss.
type LossCase struct {
	Name   string
	Batch  Batch
	Config mgrpo.Objective
	Expect Loss
}

// Losses reads losses.json.
func Losses(t testing.TB) (defaults mgrpo.Objective, cases []LossCase) {
	t.Helper()
	var f struct {
		Defaults mgrpo.Objective
		Batches  map[string]Batch
		Cases    []struct {
			Name, Batch string
			Config      mgrpo.Objective
			Expect      Loss
		}
	}
	golden.Read(t, "mgrpo", "losses.json", &f)
	for _, c := range f.Cases {
		cases = append(cases, LossCase{c.Name, f.Batches[c.Batch], c.Config, c.Expect})
	}
	return f.Defaults, cases
}

// LongLosses reads losses_long.json and the arrays of its batch.
func LongLosses(t testing.TB) (cases []LossCase) {
	t.Helper()
	var f struct {
		Cases map[string]LossCase
	}
	golden.Read(t, "mgrpo", "losses_long.json", &f)
	a := golden.ReadTensors(t, golden.File(t, "mgrpo", "losses_long.safetensors"))
	for name, c := range f.Cases {
		c.Name, c.Batch, c.Expect.DLogProb = name, batchOf(a), numbers(a["dlogp_new."+name].Data)
		cases = append(cases, c)
	}
	return cases
}

// NonFiniteLosses reads the batches of nonfinite.json.
func NonFiniteLosses(t testing.TB) (cases []LossCase) {
	t.Helper()
	var f struct {
		Base  json.RawMessage
		Cases []struct {
			LossCase
			Edits []struct {
				Field string
				Index int
				Value any
			}
			Absent string
		}
	}
	golden.Read(t, "mgrpo", "nonfinite.json", &f)
	for _, c := range f.Cases {
		var fields map[string]any
		err := json.Unmarshal(f.Base, &fields)
		for _, e := range c.Edits {
			fields[e.Field].([]any)[e.Index] = e.Value
		}
		delete(fields, c.Absent)
		raw, _ := json.Marshal(fields)
		if err == nil {
			err = json.Unmarshal(raw, &c.Batch)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		cases = append(cases, c.LossCase)
	}
	return cases
}
