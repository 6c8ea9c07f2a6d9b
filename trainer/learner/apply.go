package learner

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// apply makes one AdamW update from the accumulated gradient and returns the gradient's norm. If the norm is not finite,
// apply changes nothing and returns an error.
func (l *Learner) apply(ctx context.Context, lr float64) (norm float64, err error) {
	a := l.opt.Adam
	err = l.model.Device.Do(ctx, func(s *torch.Scope) (err error) {
		b, n := model.Backend(s), l.grad.Numel()
		if norm, err = kernels.GradNorm(b, l.grad.Ptr(), n); err != nil {
			return err
		}
		var copied unsafe.Pointer
		if half := l.params.Half(); half != nil {
			copied = half.Ptr()
		}
		err = kernels.AdamW(b, l.params.Master().Ptr(), l.m.Ptr(), l.v.Ptr(), l.grad.Ptr(), copied, n, norm, kernels.AdamWConfig{
			LR: lr, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, MaxNorm: a.Clip, Step: l.steps + 1,
		})
		if err == nil {
			l.params.Publish()
		}
		return err
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
