package learner

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// apply makes one AdamW update from the accumulated gradient and returns the gradient's norm. If the norm is not finite,
// apply changes nothing and returns an error.
func (s *State) apply(ctx context.Context, g *gradient, lr float64) (norm float64, err error) {
	if norm, err = g.norm(ctx, s.division); err != nil {
		return norm, err
	}
	// Even if ctx has ended, this rank makes the update, because the other ranks do. It leaves the group afterwards.
	err = s.group.run(context.WithoutCancel(ctx), s.model.Device, func(scope *torch.Scope) (err error) {
		err = s.adamW(scope, g, norm, lr)
		if isRefusal(err) { // by all ranks, as they have the same norm
			return err
		}
		if err = s.group.together(ctx, err); err != nil {
			return err
		}
		return s.spread(ctx)
	})
	var failed *kernels.Error
	if errors.As(err, &failed) && failed.Status == kernels.NonFinite {
		return norm, fmt.Errorf("learner: the gradient's norm is %v: %w", norm, err)
	}
	if err == nil {
		s.steps++
	}
	return norm, err
}

// adamW updates this rank's share, in pieces that fit on the device. The kernel refuses a norm that is not finite with the
// first piece; for this check, even an empty share has one piece.
func (s *State) adamW(scope *torch.Scope, g *gradient, norm, lr float64) (err error) {
	a := s.adam
	cfg := kernels.AdamWConfig{
		LR: lr, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, Clip: a.Clip, Step: s.steps + 1,
	}
	pieces := s.share.Without(s.fixed).Cut(min(s.m.Piece, s.params.Master().Piece))
	if len(pieces) == 0 {
		pieces = ranks.Share{{}}
	}
	for _, p := range pieces {
		scope.Scoped(func() {
			err = s.onDevice(scope, p, func(master, m, v *torch.Tensor) error {
				var copied unsafe.Pointer
				if half := s.params.Half(); half != nil {
					copied = s.in(half, p).Ptr()
				}
				return kernels.AdamW(model.Backend(scope), master.Ptr(), m.Ptr(), v.Ptr(), s.in(g.sum, p).Ptr(), copied, p.Numel(), norm, cfg)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// onDevice calls f with the weights and moments of a piece of this rank's share, on the device.
func (s *State) onDevice(scope *torch.Scope, p ranks.Piece, f func(master, m, v *torch.Tensor) error) error {
	weights, n := s.params.Master(), p.Numel()
	return weights.OnDevice(scope, p.In(weights.Numel(), s.params.Numel()), n, func(master *torch.Tensor) error {
		return s.m.OnDevice(scope, p.At, n, func(m *torch.Tensor) error {
			return s.v.OnDevice(scope, p.At, n, func(v *torch.Tensor) error { return f(master, m, v) })
		})
	})
}
