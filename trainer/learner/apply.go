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
)

// apply makes one AdamW update from the accumulated gradient and returns the gradient's norm. If the norm is not finite,
// apply changes nothing and returns an error.
func (l *Learner) apply(ctx context.Context, lr float64) (norm float64, err error) {
	if norm, err = l.norm(ctx); err != nil {
		return norm, err
	}
	// The others make the update: this rank does too, and ends the group after that if ctx has ended.
	err = l.meet(context.WithoutCancel(ctx), func(s *torch.Scope) (err error) {
		err = l.adamW(s, norm, lr)
		if refused(err) { // by all, as they have one norm
			return err
		}
		if err = l.together(ctx, err); err != nil {
			return err
		}
		for _, whole := range l.whole() {
			if err := l.group.AllGather(ctx, whole); err != nil {
				return err
			}
		}
		l.params.Publish()
		return nil
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

// adamW updates this rank's share, at once or as much at a time as there is of weights and moments on the device. A norm that is not finite is refused
// with the first piece, which an empty share has, too.
func (l *Learner) adamW(s *torch.Scope, norm, lr float64) (err error) {
	a := l.opt.Adam
	cfg := kernels.AdamWConfig{
		LR: lr, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, MaxNorm: a.Clip, Step: l.steps + 1,
	}
	most := min(l.m.Piece, l.params.Master().Piece)
	for from := int64(0); err == nil && (from == 0 || from < l.m.Numel()); from += most {
		n := min(most, l.m.Numel()-from)
		part := func(flat *torch.Tensor) unsafe.Pointer { return l.share(flat).Narrow(0, from, n).Ptr() }
		s.Scoped(func() {
			err = l.lend(s, from, n, func(master, m, v *torch.Tensor) error {
				var copied unsafe.Pointer
				if half := l.params.Half(); half != nil {
					copied = part(half)
				}
				return kernels.AdamW(model.Backend(s), master.Ptr(), m.Ptr(), v.Ptr(), part(l.grad), copied, n, norm, cfg)
			})
		})
	}
	return err
}

// lend gives f n weights and moments of this rank's share, from its element `from` on, on the device.
func (l *Learner) lend(s *torch.Scope, from, n int64, f func(master, m, v *torch.Tensor) error) error {
	weights, first := l.params.Master(), from
	if weights.Numel() == l.params.Numel() {
		first += l.from
	}
	return weights.Lend(s, first, n, func(master *torch.Tensor) error {
		return l.m.Lend(s, from, n, func(m *torch.Tensor) error {
			return l.v.Lend(s, from, n, func(v *torch.Tensor) error { return f(master, m, v) })
		})
	})
}

// norm sums the ranks' gradients up and returns the norm of the sum.
func (l *Learner) norm(ctx context.Context) (norm float64, err error) {
	if l.part == nil { // otherwise each micro-batch's gradient was
		err = l.meet(ctx, func(*torch.Scope) error { return l.group.ReduceScatter(ctx, l.grad) })
	}
	var own float64
	if err == nil {
		err = l.model.Device.Do(ctx, func(s *torch.Scope) (err error) {
			own, err = kernels.GradNorm(model.Backend(s), l.share(l.grad).Ptr(), l.to-l.from)
			return err
		})
	}
	norms, err := agree(ctx, l.group, own, err, 0)
	for _, n := range norms {
		norm = math.Hypot(norm, n)
	}
	return norm, err
}

// whole are the buffers of weights that every rank holds whole: those that forward passes read.
func (l *Learner) whole() (all []*torch.Tensor) {
	for _, flat := range []*torch.Tensor{l.params.Master().Tensor, l.params.Half()} {
		if flat != nil && flat.Numel() == l.params.Numel() {
			all = append(all, flat)
		}
	}
	return all
}

// share is this rank's share of a flat buffer, which may be that share alone.
func (l *Learner) share(flat *torch.Tensor) *torch.Tensor {
	if flat.Numel() != l.params.Numel() {
		return flat
	}
	return flat.Narrow(0, l.from, l.to-l.from)
}
