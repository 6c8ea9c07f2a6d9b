package phases

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// memoryMeter calls run and returns a provider's memory in bytes, as measure.Native.Memory does.
type memoryMeter func(ctx context.Context, run func() error) (int64, error)

// processMemory measures the memory of the whole process, including weights and moments, as the peers do. On a GPU it measures the tensors.
func processMemory(d *torch.Device) memoryMeter {
	return func(ctx context.Context, run func() error) (int64, error) {
		if d.IsCUDA() {
			return tensorPeak(ctx, d, run)
		}
		if err := run(); err != nil {
			return 0, err
		}
		m, err := d.Memory(ctx)
		return m.PeakRSS, err
	}
}

// ownMemory returns the bytes of a provider's own tensors, and measures their peak. The process has tensors of another provider, too.
// before is the memory when the provider was opened.
func ownMemory(ctx context.Context, d *torch.Device, before int64) (held int64, measure memoryMeter, err error) {
	m, err := d.Memory(ctx)
	held = m.Allocated - before
	return held, func(ctx context.Context, run func() error) (int64, error) {
		before, err := d.Memory(ctx)
		if err != nil {
			return 0, err
		}
		peak, err := tensorPeak(ctx, d, run)
		return held + peak - before.Allocated, err
	}, err
}

// tensorPeak returns the highest memory of the device's tensors during a run.
func tensorPeak(ctx context.Context, d *torch.Device, run func() error) (int64, error) {
	if err := d.Do(ctx, func(s *torch.Scope) error { s.ResetPeak(); return nil }); err != nil {
		return 0, err
	}
	if err := run(); err != nil {
		return 0, err
	}
	m, err := d.Memory(ctx)
	return m.Peak, err
}
