package model

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// repeated is the number of normal values that RandomOnDevice repeats. It is a prime, so that rows differ.
const repeated = 1<<22 - 3

// RandomOnDevice makes a model for benchmarks. Its weights have the standard deviations of Random and are filled on the
// device from one block of normal values that repeats. This takes a second; Random takes a minute. All values are
// representable in bf16, whatever opt is, so that a bf16 copy of the model equals it. Weights in host memory or divided
// among ranks are refused.
func RandomOnDevice(ctx context.Context, dev *torch.Device, cfg arch.Config, seed uint64, opt Options) (*Model, error) {
	if opt.HostMaster || opt.Size > 1 || opt.Gathered {
		return nil, errors.New("model: random weights can be filled on a device only if that device holds all of them")
	}
	m, err := allocate(ctx, dev, cfg, opt)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0x6d6772706f))
	block := make([]float32, min(repeated, m.Layout.Numel))
	for i := range block {
		block[i] = float32(rng.NormFloat64())
	}
	flat := m.Half
	if m.Master != nil {
		flat = m.Master.Tensor
	}
	err = dev.Do(ctx, func(s *torch.Scope) error {
		normals := s.FromFloat32(block, int64(len(block)))
		for _, l := range m.Layout.Leaves {
			for _, t := range l.Parts {
				mean, std := initial(&cfg, l)
				s.Scoped(func() { repeat(s, normals, flat.Narrow(0, t.Offset, t.Numel()), t.Offset, mean, std) })
			}
		}
		return nil
	})
	if err == nil {
		err = m.syncHalf(ctx)
	}
	if err != nil {
		m.Close(ctx)
		return nil, err
	}
	return m, nil
}

// repeat fills dst with normals times std, or with mean if std is 0. It begins with the given element of the repeated normals.
func repeat(s *torch.Scope, normals, dst *torch.Tensor, first int64, mean float32, std float64) {
	rounded := s.Empty(torch.BFloat16, dst.Numel())
	if std == 0 {
		rounded.Fill_(float64(mean))
	} else {
		for from := int64(0); from < dst.Numel(); {
			at := (first + from) % normals.Numel()
			n := min(dst.Numel()-from, normals.Numel()-at)
			rounded.Narrow(0, from, n).CopyFrom(normals.Narrow(0, at, n))
			from += n
		}
		rounded.Scale_(std)
	}
	dst.CopyFrom(rounded)
}
