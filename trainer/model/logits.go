package model

import (
	"context"
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Logits returns the next-token logits after prefixes of a sequence. The result has one row of VocabSize values for each of
// ends: row i follows ids[:ends[i]]. The logits are computed with the forward pass of training, with the head in fp32.
func (m *Model) Logits(ctx context.Context, ids []int32, ends []int) ([][]float32, error) {
	return m.LogitsOf(ctx, ids, ends, func(s *torch.Scope, in Packed) (*torch.Tensor, error) { return m.Forward(s, in), nil })
}

// LogitsOf returns the logits as Logits does, computed with another forward pass.
func (m *Model) LogitsOf(ctx context.Context, ids []int32, ends []int, forward func(s *torch.Scope, in Packed) (*torch.Tensor, error)) ([][]float32, error) {
	out := make([][]float32, len(ends))
	pos, rows := make([]int32, len(ids)), make([]int32, len(ends))
	for i := range pos {
		pos[i] = int32(i)
	}
	for i, end := range ends {
		rows[i], out[i] = int32(end-1), make([]float32, m.Config.VocabSize)
	}
	err := m.Device.Do(ctx, func(s *torch.Scope) error {
		t, n := int64(len(ids)), int64(len(ends))
		in := Packed{IDs: s.FromInt32(ids, t), Pos: s.FromInt32(pos, t), Cu: s.FromInt32([]int32{0, int32(t)}, 2)}
		hidden, err := forward(s, in)
		if err != nil {
			return err
		}
		hidden = hidden.IndexSelect(0, s.FromInt32(rows, n)).To(torch.Float32)
		const maxRows = 1 << 13 // rows of the head that are in fp32 at once
		vocab := int64(m.Config.VocabSize)
		for from := int64(0); from < vocab; from += maxRows {
			s.Scoped(func() {
				width := min(maxRows, vocab-from)
				piece := make([]float32, n*width)
				torch.Linear(hidden, m.Training.headRows(s, from, width), nil).Float32s(piece)
				capped(piece, m.Config.LogitCap)
				for i := range out {
					copy(out[i][from:], piece[int64(i)*width:int64(i+1)*width])
				}
			})
		}
		return nil
	})
	return out, err
}

// capped applies the cap of logits, 0 for none.
func capped(logits []float32, limit float64) {
	if limit == 0 {
		return
	}
	for i, z := range logits {
		logits[i] = float32(limit * math.Tanh(float64(z)/limit))
	}
}

// headRows returns n rows of the head in float32, beginning with row `from`.
func (d *Decoder) headRows(s *torch.Scope, from, n int64) *torch.Tensor {
	switch head := d.head.(type) {
	case *torch.Quantised:
		return head.Widen(s, from, n)
	case *torch.Tensor:
		return head.Narrow(0, from, n).To(torch.Float32)
	}
	return nil
}
