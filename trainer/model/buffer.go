package model

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

const (
	chunkElements = 1 << 20 // values that are copied between device and host at a time (4 MiB of fp32)
	hostPiece     = 1 << 22 // values of a buffer in host memory that are copied to the device at a time (16 MiB)
)

// Buffer holds one fp32 value for each parameter. The values are on the model's device, or in host memory: then they are
// copied to the device one piece at a time. The host memory is outside Go's heap, because the garbage collector would let
// that heap grow to twice the size.
type Buffer struct {
	Tensor *torch.Tensor // [n], on the device; nil if the values are in host memory
	Piece  int64         // largest number of values that OnDevice passes at a time

	inHost []float32
	mapped []byte // the memory behind inHost
}

// NewBuffer makes a buffer of n zeros, in host memory if inHost is set.
func NewBuffer(s *torch.Scope, n int64, inHost bool) (*Buffer, error) {
	if !inHost {
		return BufferOver(torch.KeptZeros(s, torch.Float32, n)), nil
	}
	mapped, err := unix.Mmap(-1, 0, int(4*max(n, 1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes of host memory for the optimizer's state: %w", 4*n, err)
	}
	return &Buffer{Piece: hostPiece, inHost: unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mapped))), n), mapped: mapped}, nil
}

// BufferOver returns a buffer over a flat tensor. If the tensor is not fp32, values are converted.
func BufferOver(flat *torch.Tensor) *Buffer {
	return &Buffer{Tensor: flat, Piece: max(flat.Numel(), 1)}
}

// Numel returns the number of values; 0 for nil.
func (b *Buffer) Numel() int64 {
	switch {
	case b == nil:
		return 0
	case b.Tensor != nil:
		return b.Tensor.Numel()
	}
	return int64(len(b.inHost))
}

// OnDevice calls f with n values on the device, beginning with element `from`. Values that f writes are kept unless f fails.
func (b *Buffer) OnDevice(s *torch.Scope, from, n int64, f func(piece *torch.Tensor) error) error {
	if b.Tensor != nil {
		return f(b.Tensor.Narrow(0, from, n))
	}
	values := b.inHost[from:][:n]
	piece := s.FromFloat32(values, n)
	err := f(piece)
	if err == nil {
		piece.Float32s(values)
	}
	return err
}

// CopyTo fills a flat tensor on the device, of any type, with the values that begin at element `at`.
func (b *Buffer) CopyTo(s *torch.Scope, at int64, dst *torch.Tensor) {
	if b.Tensor != nil {
		dst.CopyFrom(b.Tensor.Narrow(0, at, dst.Numel()))
		return
	}
	for from := int64(0); from < dst.Numel(); from += b.Piece {
		n := min(b.Piece, dst.Numel()-from)
		s.Scoped(func() { dst.Narrow(0, from, n).CopyFrom(s.FromFloat32(b.inHost[at+from:][:n], n)) })
	}
}

// Clear sets the values to 0.
func (b *Buffer) Clear() {
	clear(b.inHost)
	if b.Tensor != nil {
		b.Tensor.Zero_()
	}
}

// Drop frees the memory and leaves the buffer empty.
func (b *Buffer) Drop() (err error) {
	if b == nil {
		return nil
	}
	b.Tensor.Drop()
	if b.mapped != nil {
		err = unix.Munmap(b.mapped)
	}
	*b = Buffer{Piece: 1}
	return err
}

// Read copies the values that begin at element `from` to dst.
func (b *Buffer) Read(ctx context.Context, from int64, dst []float32) error {
	if b.Tensor == nil {
		copy(dst, b.inHost[from:])
		return nil
	}
	return b.Tensor.Device().Do(ctx, func(*torch.Scope) error {
		b.Tensor.Narrow(0, from, int64(len(dst))).Float32s(dst)
		return nil
	})
}

// Copy does the same as Read, with all cores if the device is a CPU: one core does not use the full memory bandwidth. The
// values are fp32.
func (b *Buffer) Copy(ctx context.Context, from int64, dst []float32) error {
	if b.Tensor == nil || b.Tensor.Device().IsCUDA() {
		return b.Read(ctx, from, dst)
	}
	return b.Tensor.Device().Do(ctx, func(s *torch.Scope) error {
		src := unsafe.Slice((*float32)(b.Tensor.Ptr()), b.Numel())[from:]
		share := len(dst)/s.Device().Threads() + 1
		var copying sync.WaitGroup
		for at := 0; at < len(dst); at += share {
			copying.Go(func() { copy(dst[at:min(at+share, len(dst))], src[at:]) })
		}
		copying.Wait()
		return nil
	})
}

// Set writes values to the elements that begin at `at`.
func (b *Buffer) Set(ctx context.Context, at int64, values []float32) error {
	if b.Tensor == nil {
		copy(b.inHost[at:], values)
		return nil
	}
	return b.Tensor.Device().Do(ctx, func(*torch.Scope) error {
		b.Tensor.Narrow(0, at, int64(len(values))).SetBytes(floatBytes(values), torch.Float32)
		return nil
	})
}

// Fill sets n values, beginning with element `at`. read fills dst with new values; its argument `from` counts from the
// first of them.
func (b *Buffer) Fill(ctx context.Context, at, n int64, read func(from int64, dst []float32) error) error {
	return inPieces(n, chunkElements, read, func(from int64, values []float32) error { return b.Set(ctx, at+from, values) })
}
