package model

import (
	"context"
	"hash/crc32"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/arch"
)

// fill sets every parameter. read fills dst with the elements of a checkpoint tensor from element `from` on; dst is
// whole rows.
func (m *Model) fill(ctx context.Context, read func(l arch.Leaf, t arch.Tensor, from int64, dst []float32) error) error {
	to := m.Master
	if to == nil {
		to = On(m.Half)
	}
	for _, l := range m.Layout.Leaves {
		for _, t := range l.Parts {
			cols := t.Numel() / max(t.Shape[0], 1)
			rows := max(chunkElements/max(cols, 1), 1)
			err := to.write(ctx, t.Offset, t.Numel(), rows*cols, func(from int64, dst []float32) error {
				return read(l, t, from, dst)
			})
			if err != nil {
				return err
			}
		}
	}
	return m.SyncHalf(ctx)
}

// Digest is a checksum of the values that the model computes with, adapters apart. Of matrices in blocks it is of the widened values.
func (m *Model) Digest(ctx context.Context) (sum uint32, err error) {
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

// SyncHalf copies Master to the bf16 copy or, without a Master, what Generation has in float32 from Half.
func (m *Model) SyncHalf(ctx context.Context) error {
	if m.Half == nil {
		return nil
	}
	return m.Device.Do(ctx, func(s *torch.Scope) error {
		if m.Master != nil && !m.sharded() {
			m.Master.copyTo(s, m.Half)
		}
		m.widenVectors()
		return nil
	})
}

// widenVectors renews the norms and biases that wideVectors made.
func (m *Model) widenVectors() {
	if m.Master != nil && !m.apart() {
		return // they are views of Master
	}
	for i, t := range m.wide {
		if t.DType() == torch.Float32 {
			t.CopyFrom(m.halves[i])
		}
	}
}

// sharded says whether Master is a part of the weights.
func (m *Model) sharded() bool { return m.Master != nil && m.Master.Numel() != m.Layout.Numel }

// apart says whether no forward pass can read Master.
func (m *Model) apart() bool { return m.sharded() || m.Master.Tensor == nil }

// shard keeps elements [from, to) of Master alone. Forward passes compute from Half.
func (m *Model) shard(s *torch.Scope, from, to int64) (err error) {
	for _, view := range m.wide {
		view.Drop()
	}
	if m.Master, err = m.Master.cut(s, from, to); err != nil {
		return err
	}
	m.first = from
	if m.wide != nil {
		m.wide = m.wideVectors(s)
		m.widenVectors()
		*m.Generation = *m.generation()
	}
	return nil
}

// Checksum continues the CRC-32C of values, in little-endian float32, which sum is of what came before.
func Checksum(sum uint32, values []float32) uint32 {
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), floatBytes(values))
}

func floatBytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
