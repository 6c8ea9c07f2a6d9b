package archive

import (
	"context"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// snapshot is a copy of the weights and moments from which a checkpoint is written while training continues. Its memory is
// outside Go's heap: a larger heap would make the garbage collector run later and keep more garbage. The memory is
// allocated once, because allocating it takes longer than copying.
type snapshot struct {
	mapped []byte
	master []float32 // the weights
	m, v   []float32 // AdamW's moments
}

func newSnapshot(numel int64) (*snapshot, error) {
	bytes := 3 * 4 * numel
	mapped, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes for the copy of weights and moments that checkpoints are written from: %w", bytes, err)
	}
	all := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mapped))), 3*numel)
	return &snapshot{mapped, all[:numel], all[numel : 2*numel], all[2*numel:]}, nil
}

func (c *snapshot) free() error { return unix.Munmap(c.mapped) }

// reader returns a function that reads a copied buffer. The function fails once ctx has ended.
func (c *snapshot) reader(ctx context.Context, buffer []float32) func(from int64, dst []float32) error {
	return func(from int64, dst []float32) error {
		copy(dst, buffer[from:])
		return context.Cause(ctx)
	}
}
