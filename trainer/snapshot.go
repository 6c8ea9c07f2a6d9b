package trainer

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// snapshot is a copy of the numbers that training changes, from which a checkpoint is written while training
// goes on. It lies outside of Go's heap, whose size would otherwise let as much garbage gather, and is made
// once: fresh memory costs more than the copy.
type snapshot struct {
	mapped []byte
	master []float32 // the flat buffer of model.Params
	m, v   []float32 // AdamW's moments
}

func newSnapshot(numel int64) (*snapshot, error) {
	bytes := 3 * 4 * numel
	mapped, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory for the copy from which a checkpoint is written: %w", bytes, err)
	}
	all := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mapped))), 3*numel)
	return &snapshot{mapped, all[:numel], all[numel : 2*numel], all[2*numel:]}, nil
}

func (s *snapshot) free() error { return unix.Munmap(s.mapped) }

// snap copies the agent's weights and moments as they are.
func (w *Worker) snap(ctx context.Context) (*snapshot, error) {
	m, v := w.Learner.Moments()
	return w.snapshot, w.Device.Do(ctx, func(s *torch.Scope) error {
		for flat, dst := range map[*torch.Tensor][]float32{w.Params.Master(): w.snapshot.master, m: w.snapshot.m, v: w.snapshot.v} {
			copyOut(s, flat, dst)
		}
		return nil
	})
}

// copyOut copies a flat buffer to the host. From a GPU it goes in pieces, since each passes through memory of
// its size; on the CPU every core of the agent's takes a share, since one does not fill the memory's bandwidth.
func copyOut(s *torch.Scope, flat *torch.Tensor, dst []float32) {
	if s.Device().IsCUDA() {
		const piece = 1 << 24
		for from := 0; from < len(dst); from += piece {
			to := min(from+piece, len(dst))
			s.Scoped(func() { flat.Narrow(0, int64(from), int64(to-from)).Float32s(dst[from:to]) })
		}
		return
	}
	src := unsafe.Slice((*float32)(flat.Ptr()), flat.Numel())
	share := len(dst)/s.Device().Threads() + 1
	var copying sync.WaitGroup
	for from := 0; from < len(dst); from += share {
		copying.Go(func() { copy(dst[from:min(from+share, len(dst))], src[from:]) })
	}
	copying.Wait()
}

// reader gives a checkpoint's writer what was copied of a buffer, until the run ends.
func (s *snapshot) reader(ctx context.Context, copied []float32) func(from int64, dst []float32) error {
	return func(from int64, dst []float32) error {
		copy(dst, copied[from:])
		return context.Cause(ctx)
	}
}
