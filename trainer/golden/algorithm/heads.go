package algorithm

import (
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Head is the end of a model: rows of logits, or hidden rows and a weight matrix, and their batch.
type Head struct {
	Name                   string
	Batch                  Batch
	Config                 mgrpo.Objective
	Temperature            float64
	Targets                []int32
	Logits, Hidden, Weight [][]mgrpo.Number
	Expect                 HeadLoss
}

// HeadLoss is the expected loss of a head, with log-probs and gradients of its inputs.
type HeadLoss struct {
	Loss
	LogProb []mgrpo.Number   `json:"logp_new"`
	Entropy []mgrpo.Number   `json:"entropy"`
	DLogits [][]mgrpo.Number `json:"dlogits"`
	DHidden [][]mgrpo.Number `json:"dhidden"`
	DWeight [][]mgrpo.Number `json:"dweight"`
}

// Row is a row of logits, with the gradients of log-prob and entropy with respect to it.
type Row struct {
	Name        string
	Logits      []mgrpo.Number
	Target      int32
	Temperature float64
	Expect      struct {
		LogProb  mgrpo.Number   `json:"logp"`
		Entropy  mgrpo.Number   `json:"entropy"`
		DLogProb []mgrpo.Number `json:"dlogp"`
		DEntropy []mgrpo.Number `json:"dentropy"`
	}
}

// HeadFile is the content of head.json.
type HeadFile struct {
	Rows           []Row
	Logits, Linear []Head
}

// Heads reads head.json.
func Heads(t testing.TB) (f HeadFile) {
	t.Helper()
	golden.Read(t, "mgrpo", "head.json", &f)
	return f
}

// LargeHead reads head_large.json and its arrays.
func LargeHead(t testing.TB) (h Head) {
	t.Helper()
	golden.Read(t, "mgrpo", "head_large.json", &h)
	a := golden.ReadTensors(t, golden.File(t, "mgrpo", "head_large.safetensors"))
	h.Batch, h.Targets = batchOf(a), a["targets"].Int32s()
	h.Hidden, h.Weight = matrix(a["hidden"]), matrix(a["weight_matrix"])
	h.Expect.LogProb, h.Expect.Entropy = numbers(a["logp_new"].Data), numbers(a["entropy"].Data)
	h.Expect.DLogProb = numbers(a["dlogp_new"].Data)
	h.Expect.DHidden, h.Expect.DWeight = matrix(a["dhidden"]), matrix(a["dweight"])
	return h
}

func matrix(a golden.Tensor) [][]mgrpo.Number {
	return slices.Collect(slices.Chunk(numbers(a.Data), int(a.Shape[1])))
}

// NonFiniteHeads reads the heads of nonfinite.json. Those of hidden rows have no logits.
func NonFiniteHeads(t testing.TB) (heads []Head) {
	t.Helper()
	var f struct {
		Head struct {
			Head
			BatchLinear Batch `json:"batch_linear"`
			Cases       []struct {
				Name, Kind string
				Edits      []struct {
					Array       string
					Row, Column int
					Value       mgrpo.Number
				}
				Expect HeadLoss
			}
		}
	}
	golden.Read(t, "mgrpo", "nonfinite.json", &f)
	copied := func(rows [][]mgrpo.Number) (out [][]mgrpo.Number) {
		for _, r := range rows {
			out = append(out, slices.Clone(r))
		}
		return out
	}
	for _, c := range f.Head.Cases {
		h := f.Head.Head
		h.Name, h.Expect, h.Logits, h.Hidden, h.Weight = c.Name, c.Expect, copied(h.Logits), copied(h.Hidden), copied(h.Weight)
		for _, e := range c.Edits {
			rows := map[string][][]mgrpo.Number{"": h.Logits, "hidden": h.Hidden, "weight": h.Weight}[e.Array]
			rows[e.Row][e.Column] = e.Value
		}
		if c.Kind == "linear" {
			h.Batch, h.Logits = f.Head.BatchLinear, nil
		} else {
			h.Hidden, h.Weight = nil, nil
		}
		heads = append(heads, h)
	}
	return heads
}
