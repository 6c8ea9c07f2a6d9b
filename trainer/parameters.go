package trainer

import (
	"context"
	"sync"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// parameters are a worker's weights and moments as its archive asks for them.
type parameters struct{ w *worker }

func (p parameters) Trains() bool { return p.w.Learner != nil && p.w.cfg.Learns(p.w.agent) }

func (p parameters) Read(ctx context.Context, from int64, dst []float32) error {
	return p.w.Model.ReadFlat(ctx, p.w.Params.Master(), from, dst)
}

func (p parameters) Moments(ctx context.Context) (m, v func(from int64, dst []float32) error) {
	first, second := p.w.Learner.Moments()
	read := func(buffer *torch.Tensor) func(int64, []float32) error {
		return func(from int64, dst []float32) error { return p.w.Model.ReadFlat(ctx, buffer, from, dst) }
	}
	return read(first), read(second)
}

func (p parameters) Numel() int64 { return p.w.Params.Numel() }

func (p parameters) Files(ctx context.Context, master func(from int64, dst []float32) error) weights.Files {
	return p.w.Params.Files(ctx, master)
}

func (p parameters) Counters() archive.Counters {
	c := archive.Counters{Refused: p.w.refused}
	if p.w.Learner != nil {
		c.Updates = p.w.Learner.Steps()
	}
	return c
}

func (p parameters) Restore(ctx context.Context, c archive.Counters, m, v func(from int64, dst []float32) error) error {
	first, second := p.w.Learner.Moments()
	if err := p.w.Model.WriteFlat(ctx, first, m); err != nil {
		return err
	}
	if err := p.w.Model.WriteFlat(ctx, second, v); err != nil {
		return err
	}
	p.w.Learner.SetSteps(c.Updates)
	p.w.refused = c.Refused
	return nil
}

func (p parameters) RestoreMaster(ctx context.Context, master func(from int64, dst []float32) error) error {
	return p.w.Params.Restore(ctx, master)
}

func (p parameters) Copy(ctx context.Context, master, m, v []float32) error {
	first, second := p.w.Learner.Moments()
	return p.w.Device.Do(ctx, func(s *torch.Scope) error {
		copyOut(s, p.w.Params.Master(), master)
		copyOut(s, first, m)
		copyOut(s, second, v)
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
