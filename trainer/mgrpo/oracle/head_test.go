package oracle

import (
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

type goldenHead struct {
	Batch       goldenBatch
	Targets     []int
	Temperature float64
	Logits      [][]mgrpo.Number
}

// lossFromLogits computes the loss of a batch from its logits, and its gradient with respect to them.
func (h goldenHead) lossFromLogits(o mgrpo.Objective) (LossResult, [][]float64, error) {
	b := h.Batch.batch()
	b.New, b.Entropy = make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
	read := make([]bool, len(b.Mask))
	for j, w := range b.Weight {
		for t := b.CuSeqlens[j]; t < b.CuSeqlens[j+1]; t++ {
			read[t] = b.Mask[t] && w > 0
		}
	}
	dlogits := make([][]float64, len(h.Logits))
	for t, row := range h.Logits {
		dlogits[t] = make([]float64, len(row))
		if !read[t] {
			continue
		}
		var err error
		if b.New[t], b.Entropy[t], err = TokenLogProb(mgrpo.Floats(row), h.Targets[t], h.Temperature); err != nil {
			err.(*mgrpo.Refusal).Token = new(t)
			return LossResult{}, nil, err
		}
	}
	loss, err := Loss(o, b)
	if err != nil {
		return loss, nil, err
	}
	for t, row := range h.Logits {
		if read[t] {
			if dlogits[t], err = TokenLogProbGrad(mgrpo.Floats(row), h.Targets[t], h.Temperature, loss.DLogProb[t], loss.DEntropy[t]); err != nil {
				return loss, nil, err
			}
		}
	}
	return loss, dlogits, nil
}

func numbers(rows [][]mgrpo.Number) (flat []float64) {
	for _, row := range rows {
		flat = append(flat, mgrpo.Floats(row)...)
	}
	return flat
}

func (h goldenHead) compare(t *testing.T, what string, o mgrpo.Objective, want goldenLoss, dlogits [][]mgrpo.Number) {
	t.Helper()
	loss, grad, err := h.lossFromLogits(o)
	if want.Error != nil {
		golden.SameError(t, what, err, *want.Error)
		return
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	golden.Near(t, what+": loss", loss.Stats.Loss, want.Loss, 1e-12)
	flat := []float64{}
	for _, row := range grad {
		flat = append(flat, row...)
	}
	golden.NearAll(t, what+": dlogits", flat, numbers(dlogits), 1e-11)
}

func TestHeadGolden(t *testing.T) {
	var f struct {
		Rows []struct {
			Name        string
			Logits      []mgrpo.Number
			Target      int
			Temperature float64
			Expect      struct {
				LogProb  float64   `json:"logp"`
				Entropy  float64   `json:"entropy"`
				DLogProb []float64 `json:"dlogp"`
				DEntropy []float64 `json:"dentropy"`
			}
		}
		Logits []struct {
			goldenHead
			Name   string
			Config mgrpo.Objective
			Expect struct {
				goldenLoss
				DLogits [][]mgrpo.Number `json:"dlogits"`
			}
		}
	}
	golden.Read(t, "mgrpo", "head.json", &f)
	for _, c := range f.Rows {
		row := mgrpo.Floats(c.Logits)
		logProb, entropy, err := TokenLogProb(row, c.Target, c.Temperature)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		golden.Near(t, c.Name+": logp", logProb, c.Expect.LogProb, 1e-12)
		golden.Near(t, c.Name+": entropy", entropy, c.Expect.Entropy, 1e-12)
		dLogProb, _ := TokenLogProbGrad(row, c.Target, c.Temperature, 1, 0)
		dEntropy, _ := TokenLogProbGrad(row, c.Target, c.Temperature, 0, 1)
		for v := range row {
			golden.Near(t, c.Name+": dlogp", dLogProb[v], c.Expect.DLogProb[v], 1e-12/c.Temperature)
			golden.Near(t, c.Name+": dentropy", dEntropy[v], c.Expect.DEntropy[v], 1e-12/c.Temperature)
		}
	}
	for _, c := range f.Logits {
		c.goldenHead.compare(t, c.Name, c.Config, c.Expect.goldenLoss, c.Expect.DLogits)
	}
	golden.Count("mgrpo/head", len(f.Rows)+len(f.Logits))
}

func TestNonFiniteHeadGolden(t *testing.T) {
	var f struct {
		Head struct {
			goldenHead
			Config mgrpo.Objective
			Cases  []struct {
				Name, Kind string
				Edits      []struct {
					Row, Column int
					Value       mgrpo.Number
				}
				Expect struct {
					goldenLoss
					DLogits [][]mgrpo.Number `json:"dlogits"`
				}
			}
		}
	}
	golden.Read(t, "mgrpo", "nonfinite.json", &f)
	cases := 0
	for _, c := range f.Head.Cases {
		if c.Kind != "logits" {
			continue
		}
		h := f.Head.goldenHead
		h.Logits = nil
		for _, row := range f.Head.Logits {
			h.Logits = append(h.Logits, slices.Clone(row))
		}
		for _, e := range c.Edits {
			h.Logits[e.Row][e.Column] = e.Value
		}
		h.compare(t, c.Name, f.Head.Config, c.Expect.goldenLoss, c.Expect.DLogits)
		cases++
	}
	golden.Count("mgrpo/nonfinite_head", cases)
}
