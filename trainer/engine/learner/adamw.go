package learner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// apply makes one AdamW update from the accumulated gradient and returns the gradient's norm. If the norm is not finite,
// apply changes nothing and returns an error.
func (l *Learner) apply(ctx context.Context, lr float64) (norm float64, err error) {
	if norm, err = l.norm(ctx); err != nil {
		return norm, err
	}
	// Even if ctx has ended, this rank makes the update, because the other ranks do. It leaves the group afterwards.
	err = l.runOrGiveUp(context.WithoutCancel(ctx), func(s *torch.Scope) (err error) {
		err = l.adamW(s, norm, lr)
		if refused(err) { // by all ranks, as they have the same norm
			return err
		}
		if err = l.together(ctx, err); err != nil {
			return err
		}
		return l.spread(ctx)
	})
	var failed *kernels.Error
	if errors.As(err, &failed) && failed.Status == kernels.NonFinite {
		return norm, fmt.Errorf("learner: the gradient's norm is %v: %w", norm, err)
	}
	if err == nil {
		l.steps++
	}
	return norm, err
}

// spread gives every rank the others' shares of the weights that forward passes always read, and publishes them.
func (l *Learner) spread(ctx context.Context) error {
	if l.model.Gathered() {
		return l.gatherRest(ctx, l.model)
	}
	for _, whole := range l.whole() {
		for _, b := range l.blocks {
			if err := l.group.AllGather(ctx, whole.Narrow(0, b.From, b.Numel())); err != nil {
				return err
			}
		}
	}
	l.params.Publish()
	return nil
}

// adamW updates this rank's share, in pieces of the size that weights and moments have on the device. A norm that is
// not finite is refused with the first piece, which an empty share has, too.
func (l *Learner) adamW(s *torch.Scope, norm, lr float64) (err error) {
	a := l.opt.Adam
	cfg := kernels.AdamWConfig{
		LR: lr, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, MaxNorm: a.Clip, Step: l.steps + 1,
	}
	pieces := l.share.Without(l.fixed).Cut(min(l.m.Piece, l.params.Master().Piece))
	if len(pieces) == 0 {
		pieces = ranks.Share{{}}
	}
	for _, p := range pieces {
		s.Scoped(func() {
			err = l.onDevice(s, p, func(master, m, v *torch.Tensor) error {
				var copied unsafe.Pointer
				if half := l.params.Half(); half != nil {
					copied = l.in(half, p).Ptr()
				}
				return kernels.AdamW(model.Backend(s), master.Ptr(), m.Ptr(), v.Ptr(), l.in(l.grad, p).Ptr(), copied, p.Numel(), norm, cfg)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// onDevice calls f with the weights and moments of a piece of this rank's share, on the device.
func (l *Learner) onDevice(s *torch.Scope, p ranks.Piece, f func(master, m, v *torch.Tensor) error) error {
	weights, n := l.params.Master(), p.Numel()
	return weights.OnDevice(s, p.In(weights.Numel(), l.params.Numel()), n, func(master *torch.Tensor) error {
		return l.m.OnDevice(s, p.At, n, func(m *torch.Tensor) error {
			return l.v.OnDevice(s, p.At, n, func(v *torch.Tensor) error { return f(master, m, v) })
		})
	})
}

// norm sums up the ranks' gradients and returns the norm of the sum.
func (l *Learner) norm(ctx context.Context) (norm float64, err error) {
	if l.part == nil { // otherwise each micro-batch's gradient was summed already
		err = l.runOrGiveUp(ctx, func(*torch.Scope) (err error) {
			for i := 0; i < len(l.blocks) && err == nil; i++ {
				err = l.group.ReduceScatter(ctx, l.grad.Narrow(0, l.blocks[i].From, l.blocks[i].Numel()))
			}
			return err
		})
	}
	var own float64
	if err == nil {
		err = l.model.Device.Do(ctx, func(s *torch.Scope) error {
			for _, p := range l.share {
				norm, err := kernels.GradNorm(model.Backend(s), l.in(l.grad, p).Ptr(), p.Numel())
				if own = math.Hypot(own, norm); err != nil {
					return err
				}
			}
			return nil
		})
	}
	norms, err := agree(ctx, l.group, own, err, 0)
	for _, n := range norms {
		norm = math.Hypot(norm, n)
	}
	return norm, err
}

// whole returns the buffers of weights that every rank has completely, which forward passes read.
func (l *Learner) whole() (all []*torch.Tensor) {
	for _, flat := range []*torch.Tensor{l.params.Master().Tensor, l.params.Half()} {
		if flat != nil && flat.Numel() == l.params.Numel() {
			all = append(all, flat)
		}
	}
	return all
}

// in returns a piece of this rank's share in a flat buffer, which is either the whole buffer or the share's own.
func (l *Learner) in(flat *torch.Tensor, p ranks.Piece) *torch.Tensor {
	return flat.Narrow(0, p.In(flat.Numel(), l.params.Numel()), p.Numel())
}

// shareOf returns a rank's share of the parameters.
func (l *Learner) shareOf(rank int) ranks.Share { return ranks.ShareOf(l.blocks, rank, l.group.Size()) }
