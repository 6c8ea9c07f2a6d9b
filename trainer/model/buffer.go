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
	hostPiece     = 1 << 22 // values of a buffer in the host's memory that are lent to the device at a time (16 MiB)
)

// Buffer is fp32 values of parameters, one each: on the model's device, or in the host's memory, from where the device is lent a piece at
// a time. That memory is outside of Go's heap, which would keep as much garbage again.
type Buffer struct {
	Tensor *torch.Tensor // [n], on the device; nil: the values are in the host's memory
	Piece  int64         // how many values are lent at a time, at most

	inHost []float32
	mapped []byte // the memory of inHost
}

// NewBuffer makes a buffer of n zeros.
func NewBuffer(s *torch.Scope, n int64, inHost bool) (*Buffer, error) {
	if !inHost {
		return On(s.Keep(s.Zeros(torch.Float32, n))), nil
	}
	mapped, err := unix.Mmap(-1, 0, int(4*max(n, 1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of the host's memory for what the optimizer keeps: %w", 4*n, err)
	}
	return &Buffer{Piece: hostPiece, inHost: unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mapped))), n), mapped: mapped}, nil
}

// On is the buffer of a flat tensor. Of one that is not fp32 values are converted.
func On(flat *torch.Tensor) *Buffer { return &Buffer{Tensor: flat, Piece: max(flat.Numel(), 1)} }

// Numel is the number of values; nil has none.
func (b *Buffer) Numel() int64 {
	switch {
	case b == nil:
		return 0
	case b.Tensor != nil:
		return b.Tensor.Numel()
	}
	return int64(len(b.inHost))
}

// Lend gives f the n values from element `from` on, on the device. What f writes there stays, unless it fails.
func (b *Buffer) Lend(s *torch.Scope, from, n int64, f func(piece *torch.Tensor) error) error {
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

// CopyTo fills a flat tensor on the device, of any type, with the values from element `at` on.
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

// Drop frees the buffer, which is empty then.
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

// Read copies the values from element `from` on to dst.
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

// Copy is Read with every core of a CPU's device, since one does not fill the memory's bandwidth. The values are fp32.
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

// Set writes values from element `at` on.
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

// Fill sets n values from element `at` on. read fills dst with those from element `from` of them on.
func (b *Buffer) Fill(ctx context.Context, at, n int64, read func(from int64, dst []float32) error) error {
	return inPieces(n, chunkElements, read, func(from int64, values []float32) error { return b.Set(ctx, at+from, values) })
}
