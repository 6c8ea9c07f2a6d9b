package model

import (
	"context"
	"hash/crc32"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// fill sets every parameter. read fills dst with the elements of a checkpoint tensor that begin at element `from`; dst
// holds whole rows.
func (m *Model) fill(ctx context.Context, read func(l arch.Leaf, t arch.Tensor, from int64, dst []float32) error) error {
	for _, l := range m.Layout.Leaves {
		for _, t := range l.Parts {
			read := func(from int64, dst []float32) error { return read(l, t, from, dst) }
			err := inPieces(t.Numel(), rowsAtATime(t), read, func(from int64, values []float32) error {
				if m.Gathered() {
					m.loaded = Checksum(m.loaded, values)
				}
				return m.put(ctx, t.Offset+from, values)
			})
			if err != nil {
				return err
			}
		}
	}
	return m.syncHalf(ctx)
}

// rowsOf returns a function that reads whole rows of a checkpoint's tensor, beginning with element `from`.
func rowsOf(src *weights.Source, t arch.Tensor) func(from int64, dst []float32) error {
	cols := t.Numel() / max(t.Shape[0], 1)
	return func(from int64, dst []float32) error {
		return src.Read(t.Name, from/cols, (from+int64(len(dst)))/cols, dst)
	}
}

// rowsAtATime returns the number of elements in a few whole rows of a tensor.
func rowsAtATime(t arch.Tensor) int64 {
	cols := t.Numel() / max(t.Shape[0], 1)
	return max(chunkElements/max(cols, 1), 1) * cols
}

// inPieces reads n values, `step` at a time, and passes each piece to put. Both functions count `from` from the first of
// the n values.
func inPieces(n, step int64, read, put func(from int64, values []float32) error) error {
	values := make([]float32, min(step, n))
	for from := int64(0); from < n; from += step {
		piece := values[:min(step, n-from)]
		if err := read(from, piece); err != nil {
			return err
		}
		if err := put(from, piece); err != nil {
			return err
		}
	}
	return nil
}

// put sets the parameters that begin at element `at`, as far as this process holds them. It leaves out a Half that syncHalf
// copies from Master.
func (m *Model) put(ctx context.Context, at int64, values []float32) error {
	var into []*Buffer
	if m.Master != nil {
		into = append(into, m.Master)
	}
	if m.Half != nil && (m.Master == nil || m.sharded()) {
		into = append(into, BufferOver(m.Half))
	}
	for _, b := range into {
		span := ranks.Span{From: at, To: at + int64(len(values))}
		pieces := ranks.Share{{Span: span}}
		if b.Numel() != m.Layout.Numel {
			pieces = m.share.Within(span)
		}
		for _, p := range pieces {
			if err := b.Set(ctx, p.In(b.Numel(), m.Layout.Numel), values[p.From-at:p.To-at]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Digest returns a checksum of the values that the model computes with, without adapters. For matrices in blocks the
// widened values are summed. For a model that no rank holds whole it is the checksum of the loaded values.
func (m *Model) Digest(ctx context.Context) (sum uint32, err error) {
	if m.Gathered() {
		return m.loaded, nil
	}
	for i, l := range m.Layout.Leaves {
		for _, t := range l.Parts {
			values := make([]float32, t.Numel())
			if err := m.Device.Do(ctx, func(s *torch.Scope) error { m.widen(s, i, t, values); return nil }); err != nil {
				return 0, err
			}
			sum = Checksum(sum, values)
		}
	}
	return sum, nil
}

// syncHalf copies Master to Half. If forward passes cannot read Master, it also updates the float32 norms and biases of
// Generation from Half.
func (m *Model) syncHalf(ctx context.Context) error {
	if m.Half == nil {
		return nil
	}
	return m.Device.Do(ctx, func(s *torch.Scope) error {
		if m.Master != nil && !m.sharded() {
			m.Master.CopyTo(s, 0, m.Half)
		}
		m.widenVectors()
		return nil
	})
}

// widenVectors updates the norms and biases that wideVectors made.
func (m *Model) widenVectors() {
	if m.Master != nil && !m.masterUnreadable() {
		return // they are views of Master
	}
	for i, t := range m.wide {
		if t.DType() == torch.Float32 {
			t.CopyFrom(m.halves[i])
		}
	}
}

// sharded reports whether Master holds a part of the weights.
func (m *Model) sharded() bool { return m.Master != nil && m.Master.Numel() != m.Layout.Numel }

// masterUnreadable reports whether forward passes cannot read Master.
func (m *Model) masterUnreadable() bool { return m.sharded() || m.Master.Tensor == nil }

// Checksum continues a CRC-32C: it adds values, in little-endian float32, to sum, the checksum of the values before them.
func Checksum(sum uint32, values []float32) uint32 {
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), floatBytes(values))
}

func floatBytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
