package learner

import (
	"context"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// hostPiece is how many values of a buffer in the host's memory are on the device at a time (16 MiB).
const hostPiece = 1 << 22

// buffer is fp32 values of parameters, one each: on the model's device, or in the host's memory, from where the device is lent a piece at a
// time. That memory is outside of Go's heap, which would keep as much garbage again.
type buffer struct {
	onDevice *torch.Tensor // [n]; nil: the values are
	inHost   []float32
	mapped   []byte // the memory of inHost
	piece    int64  // how many values are lent at a time, at most
}

// zeros is a buffer of n zeros.
func zeros(s *torch.Scope, n int64, inHost bool) (buffer, error) {
	if !inHost {
		return buffer{onDevice: s.Keep(s.Zeros(torch.Float32, n)), piece: max(n, 1)}, nil
	}
	mapped, err := unix.Mmap(-1, 0, int(4*max(n, 1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return buffer{}, fmt.Errorf("%d bytes of the host's memory for moments: %w", 4*n, err)
	}
	return buffer{inHost: unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mapped))), n), mapped: mapped, piece: hostPiece}, nil
}

func (b buffer) numel() int64 {
	if b.onDevice != nil {
		return b.onDevice.Numel()
	}
	return int64(len(b.inHost))
}

// lend gives f the n values from element `from` on, on the device. What f writes there stays.
func (b buffer) lend(s *torch.Scope, from, n int64, f func(piece *torch.Tensor) error) error {
	if b.onDevice != nil {
		return f(b.onDevice.Narrow(0, from, n))
	}
	values := b.inHost[from:][:n]
	piece := s.FromFloat32(values, n)
	err := f(piece)
	if err == nil {
		piece.Float32s(values)
	}
	return err
}

func (b buffer) clear() {
	clear(b.inHost)
	if b.onDevice != nil {
		b.onDevice.Zero_()
	}
}

// drop frees the buffer, which is empty then.
func (b *buffer) drop() (err error) {
	b.onDevice.Drop()
	if b.mapped != nil {
		err = unix.Munmap(b.mapped)
	}
	*b = buffer{}
	return err
}

// copy copies the buffer to dst, in the host's memory.
func (b buffer) copy(ctx context.Context, m *model.Model, dst []float32) error {
	if b.onDevice == nil {
		copy(dst, b.inHost)
		return nil
	}
	return m.CopyFlat(ctx, b.onDevice, dst)
}

// fill fills the buffer with what read gives from element `from` on.
func (b buffer) fill(ctx context.Context, m *model.Model, read func(from int64, dst []float32) error) error {
	if b.onDevice == nil {
		return read(0, b.inHost)
	}
	return m.WriteFlat(ctx, b.onDevice, read)
}
