package model

import (
	"context"
	"hash/crc32"
	"sync"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/arch"
)

// chunkElements is the size of the host buffer through which weights are copied (4 MiB of fp32).
const chunkElements = 1 << 20

// fill sets every parameter. read fills dst with the elements of a checkpoint tensor from element `from` on; dst is
// whole rows.
func (m *Model) fill(ctx context.Context, read func(l arch.Leaf, t arch.Tensor, from int64, dst []float32) error) error {
	to := m.Master
	if to == nil {
		to = m.Half
	}
	for _, l := range m.Layout.Leaves {
		for _, t := range l.Parts {
			cols := t.Numel() / max(t.Shape[0], 1)
			rows := max(chunkElements/max(cols, 1), 1)
			err := m.write(ctx, to, t.Offset, t.Numel(), rows*cols, func(from int64, dst []float32) error {
				return read(l, t, from, dst)
			})
			if err != nil {
				return err
			}
		}
	}
	return m.SyncHalf(ctx)
}

// WriteFlat fills a flat fp32 buffer with the model's layout, such as an optimizer moment, from the host.
func (m *Model) WriteFlat(ctx context.Context, flat *torch.Tensor, read func(from int64, dst []float32) error) error {
	return m.write(ctx, flat, 0, flat.Numel(), chunkElements, read)
}

// write fills flat[offset:offset+n] in pieces of `step` elements; read counts from 0.
func (m *Model) write(ctx context.Context, flat *torch.Tensor, offset, n, step int64, read func(from int64, dst []float32) error) error {
	buf := make([]float32, min(step, n))
	for from := int64(0); from < n; from += step {
		dst := buf[:min(step, n-from)]
		if err := read(from, dst); err != nil {
			return err
		}
		err := m.Device.Do(ctx, func(*torch.Scope) error {
			flat.Narrow(0, offset+from, int64(len(dst))).SetBytes(floatBytes(dst), torch.Float32)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ReadFlat copies flat[from:from+len(dst)] of a flat fp32 buffer to the host.
func (m *Model) ReadFlat(ctx context.Context, flat *torch.Tensor, from int64, dst []float32) error {
	return m.Device.Do(ctx, func(*torch.Scope) error {
		flat.Narrow(0, from, int64(len(dst))).Float32s(dst)
		return nil
	})
}

// CopyFlat copies a whole flat fp32 buffer to the host. On the CPU every core of the device's takes a share, since one does not fill the
// memory's bandwidth.
func (m *Model) CopyFlat(ctx context.Context, flat *torch.Tensor, dst []float32) error {
	return m.Device.Do(ctx, func(s *torch.Scope) error {
		if s.Device().IsCUDA() {
			flat.Float32s(dst)
			return nil
		}
		src := unsafe.Slice((*float32)(flat.Ptr()), flat.Numel())
		share := len(dst)/s.Device().Threads() + 1
		var copying sync.WaitGroup
		for from := 0; from < len(dst); from += share {
			copying.Go(func() { copy(dst[from:min(from+share, len(dst))], src[from:]) })
		}
		copying.Wait()
		return nil
	})
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
	return m.Device.Do(ctx, func(*torch.Scope) error {
		if m.Master != nil && !m.sharded() {
			m.Half.CopyFrom(m.Master)
		}
		m.widenVectors()
		return nil
	})
}

// widenVectors renews the norms and biases that wideVectors made.
func (m *Model) widenVectors() {
	if m.Master != nil && !m.sharded() {
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

// shard keeps elements [from, to) of Master alone. Forward passes compute from Half.
func (m *Model) shard(s *torch.Scope, from, to int64) {
	share := s.Keep(s.Empty(torch.Float32, to-from))
	share.CopyFrom(m.Master.Narrow(0, from, to-from))
	for _, view := range append(m.wide, m.Master) {
		view.Drop()
	}
	m.Master, m.first = share, from
	if m.wide != nil {
		m.wide = m.wideVectors(s)
		m.widenVectors()
		*m.Generation = *m.generation()
	}
}

// Checksum continues the CRC-32C of values, in little-endian float32, which sum is of what came before.
func Checksum(sum uint32, values []float32) uint32 {
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), floatBytes(values))
}

func floatBytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
