package learner

import (
	"context"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda"
)

// gpuTime measures the GPU time of an update or a normalisation between two events on the device's stream. On a CPU it does
// not measure anything.
type gpuTime struct{ timer *cuda.Timer }

func startGPUTime(ctx context.Context, dev *torch.Device) (g gpuTime, err error) {
	if !dev.IsCUDA() {
		return g, nil
	}
	err = dev.Do(ctx, func(s *torch.Scope) (err error) {
		if g.timer, err = cuda.NewTimer(dev.Index(), s.Stream()); err != nil {
			return err
		}
		return g.timer.Start()
	})
	return g, err
}

func (g gpuTime) stop(ctx context.Context, dev *torch.Device) (elapsed time.Duration, known bool, err error) {
	if g.timer == nil {
		return 0, false, nil
	}
	err = dev.Do(ctx, func(*torch.Scope) (err error) {
		elapsed, err = g.timer.Stop()
		return err
	})
	return elapsed, err == nil, err
}

func (g gpuTime) close() {
	if g.timer != nil {
		_ = g.timer.Close() // a leaked event does not affect the update
	}
}
