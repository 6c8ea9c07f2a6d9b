package archive

import (
	"context"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// copied is a copy of the numbers that training changes, from which a checkpoint is written while training
// goes on. It lies outside of Go's heap, whose size would otherwise let as much garbage gather, and is made
// once: fresh memory costs more than the copy.
type copied struct {
	mapped []byte
	master []float32 // the weights
	m, v   []float32 // AdamW's moments
}

func newCopied(numel int64) (*copied, error) {
	bytes := 3 * 4 * numel
	mapped, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory for the copy from which a checkpoint is written: %w", bytes, err)
	}
	all := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mapped))), 3*numel)
	return &copied{mapped, all[:numel], all[numel : 2*numel], all[2*numel:]}, nil
}

func (c *copied) free() error { return unix.Munmap(c.mapped) }

// reader gives a checkpoint's writer what was copied of a buffer, until the run ends.
func (c *copied) reader(ctx context.Context, buffer []float32) func(from int64, dst []float32) error {
	return func(from int64, dst []float32) error {
		copy(dst, buffer[from:])
		return context.Cause(ctx)
	}
}
