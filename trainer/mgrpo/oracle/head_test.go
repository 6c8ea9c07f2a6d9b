package oracle

import (
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// lossFromLogits computes the loss of a batch from its logits, and its gradient with respect to them.
func lossFromLogits(h algorithm.Head) (LossResult, [][]float64, error) {
	b := batchOf(h.Batch)
	b.New, b.Entropy = make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
	read := h.Batch.Read()
	dlogits := make([][]float64, len(h.Logits))
	for t, row := range h.Logits {
		dlogits[t] = make([]float64, len(row))
		if !read[t] {
			continue
		}
		var err error
		if b.New[t], b.Entropy[t], err = TokenLogProb(mgrpo.Floats(row), int(h.Targets[t]), h.Temperature); err != nil {
			err.(*mgrpo.Refusal).Token = new(t)
			return LossResult{}, nil, err
		}
	}
	loss, err := Loss(h.Config, b)
	if err != nil {
		return loss, nil, err
	}
	for t, row := range h.Logits {
		if read[t] {
			if dlogits[t], err = TokenLogProbGrad(mgrpo.Floats(row), int(h.Targets[t]), h.Temperature, loss.DLogProb[t], loss.DEntropy[t]); err != nil {
				return loss, nil, err
			}
		}
	}
	return loss, dlogits, nil
}

func compareHead(t *testing.T, what string, h algorithm.Head) {
	t.Helper()
	loss, grad, err := lossFromLogits(h)
	if h.Expect.Error != nil {
		golden.SameError(t, what, err, *h.Expect.Error)
		return
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	golden.Near(t, what+": loss", loss.Stats.Loss, float64(h.Expect.Loss.Loss), 1e-12)
	golden.NearAll(t, what+": dlogits", slices.Concat(grad...), slices.Concat(h.Expect.DLogits...), 1e-11)
}

func TestHeadGolden(t *testing.T) {
	f := algorithm.Heads(t)
	for _, c := range f.Rows {
		row, target := mgrpo.Floats(c.Logits), int(c.Target)
		logProb, entropy, err := TokenLogProb(row, target, c.Temperature)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		golden.Near(t, c.Name+": logp", logProb, float64(c.Expect.LogProb), 1e-12)
		golden.Near(t, c.Name+": entropy", entropy, float64(c.Expect.Entropy), 1e-12)
		dLogProb, _ := TokenLogProbGrad(row, target, c.Temperature, 1, 0)
		dEntropy, _ := TokenLogProbGrad(row, target, c.Temperature, 0, 1)
		for v := range row {
			golden.Near(t, c.Name+": dlogp", dLogProb[v], float64(c.Expect.DLogProb[v]), 1e-12/c.Temperature)
			golden.Near(t, c.Name+": dentropy", dEntropy[v], float64(c.Expect.DEntropy[v]), 1e-12/c.Temperature)
		}
	}
	for _, c := range f.Logits {
		compareHead(t, c.Name, c)
	}
	golden.Count("mgrpo/head", len(f.Rows)+len(f.Logits))
}

func TestNonFiniteHeadGolden(t *testing.T) {
	heads := slices.DeleteFunc(algorithm.NonFiniteHeads(t), func(h algorithm.Head) bool { return h.Logits == nil })
	for _, h := range heads {
		compareHead(t, h.Name, h)
	}
	golden.Count("mgrpo/nonfinite_head", len(heads))
}
