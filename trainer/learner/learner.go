// Package learner turns trajectories into an update of the weights: packed micro-batches, the policy
// loss and its gradient through our kernels, gradients into one flat buffer, AdamW.
package learner

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// Options of a learner. Names and defaults are those of the configuration's grpo and optimizer sections.
type Options struct {
	Loss             mgrpo.Objective
	Recomputed       bool // old log-probs from a forward pass of the trainer instead of the sampler's
	Temperature      float64
	Adam             Adam
	MicroBatchTokens int   // tokens of one forward and backward pass
	Checkpoint       bool  // recompute activations in the backward pass
	HeadRows         int64 // rows of logits that exist at once; 0 means DefaultHeadRows
}

// Adam are the optimizer's constants; the rate comes with each update.
type Adam struct {
	Beta1, Beta2, Eps, WeightDecay float64
	Clip                           float64 // global gradient norm; 0 is off
}

// DefaultHeadRows bounds the logits held at once to what fits a GEMM well and memory easily.
const DefaultHeadRows = 512

// Learner owns the gradient and the optimizer state of what is trained of one model.
type Learner struct {
	model  *model.Model // computes
	params model.Params // are trained
	opt    Options
	ref    *model.Model // of the KL term; nil: there is none, or not yet

	grad  *torch.Tensor // fp32 [params.Numel]
	part  *torch.Tensor // the compute type's gradient of one micro-batch, where it is not fp32
	m, v  *torch.Tensor // fp32 [params.Numel]: first and second moment
	steps int64         // updates made; AdamW's bias correction counts them
}

// New allocates gradient and moments and makes the leaves of params accumulate into the gradient. mod computes with
// what they publish.
func New(ctx context.Context, mod *model.Model, params model.Params, opt Options) (*Learner, error) {
	if opt.HeadRows == 0 {
		opt.HeadRows = DefaultHeadRows
	}
	l := &Learner{model: mod, params: params, opt: opt}
	n := params.Numel()
	err := mod.Device.Do(ctx, func(s *torch.Scope) error {
		l.grad = s.Keep(s.Zeros(torch.Float32, n))
		l.m = s.Keep(s.Zeros(torch.Float32, n))
		l.v = s.Keep(s.Zeros(torch.Float32, n))
		target := l.grad
		if mod.Compute.DType() != torch.Float32 {
			l.part = s.Keep(s.Zeros(mod.Compute.DType(), n))
			target = l.part
		}
		for _, p := range params.Leaves() {
			p.Leaf.RequireGrad(true)
			p.Leaf.SetGrad(target.Narrow(0, p.Offset, p.Leaf.Numel()).View(p.Leaf.Shape()...))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("learner: gradient and optimizer state of %d parameters: %w (set train: false, or a smaller model)", n, err)
	}
	return l, nil
}

// SetReference makes updates compare with another model's log-probs, as a KL term needs. The caller closes it, after the learner.
func (l *Learner) SetReference(ref *model.Model) { l.ref = ref }

// ResetOptimizer forgets moments and update count, as between cold start and training.
func (l *Learner) ResetOptimizer(ctx context.Context) error {
	l.steps = 0
	return l.model.Device.Do(ctx, func(*torch.Scope) error {
		l.m.Zero_()
		l.v.Zero_()
		return nil
	})
}

// Report is what one update did. Values are named as in docs/metrics.md.
type Report struct {
	Values  map[string]float64
	Skipped bool  // nothing to learn: every advantage is 0 and no KL or entropy term is on
	Refused error // why the update was not made, though there was something to learn: a value that cannot be
}

// Prepare computes what the objective needs before the first update of a step: old log-probs where they
// are recomputed, the reference's where there is a KL term, the sampler's as old ones otherwise.
func (l *Learner) Prepare(ctx context.Context, batch []*Sequence) error {
	for _, q := range batch {
		if err := q.check(l.model.Config.VocabSize); err != nil {
			return err
		}
		q.old = q.Behaviour
	}
	if l.opt.Recomputed {
		if err := l.logProbs(ctx, l.model, batch, func(q *Sequence, v []float32) { q.old = v }); err != nil {
			return err
		}
	}
	if l.ref != nil {
		return l.logProbs(ctx, l.ref, batch, func(q *Sequence, v []float32) { q.ref = v })
	}
	return nil
}

// Update makes one optimizer step on a minibatch: sequences that Prepare has seen. A refused update is in
// the report and leaves weights, moments and count as they were; an error is one of the machinery.
func (l *Learner) Update(ctx context.Context, minibatch []*Sequence, lr float64) (Report, error) {
	r, err := l.update(ctx, byID(minibatch), lr)
	if refused(err) {
		r.Refused, err = err, nil
	}
	return r, err
}

// refused tells a batch or gradient that must not be learned from, section 7 of the specification, from a
// failure of the machinery.
func refused(err error) bool {
	var loss *mgrpo.Refusal
	var kernel *kernels.Error
	var op *torch.Error
	return errors.As(err, &loss) || (errors.As(err, &kernel) && kernel.Status == kernels.NonFinite) ||
		(errors.As(err, &op) && op.Status == kernels.NonFinite) // logits, through the head's C++
}

func (l *Learner) update(ctx context.Context, batch []*Sequence, lr float64) (Report, error) {
	loss, err := l.newMinibatchLoss(batch)
	if errors.Is(err, errNothingToRead) {
		return Report{Skipped: true}, nil
	}
	if err != nil {
		return Report{}, err
	}
	clock, err := startGPUTime(ctx, l.model.Device)
	defer clock.close()
	if err != nil {
		return Report{}, err
	}
	if err := l.zeroGrad(ctx); err != nil {
		return Report{}, err
	}
	for _, micro := range microBatches(loss.learning, l.opt.MicroBatchTokens) {
		if err := l.policyPass(ctx, loss, micro, true); err != nil {
			return Report{}, err
		}
	}
	// Trajectories without advantage have no gradient, but the statistics are over them too.
	for _, micro := range microBatches(loss.observed, l.opt.MicroBatchTokens) {
		if err := l.policyPass(ctx, loss, micro, false); err != nil {
			return Report{}, err
		}
	}
	r := Report{Values: loss.values(), Skipped: len(loss.learning) == 0}
	if r.Skipped {
		return r, nil
	}
	norm, err := l.apply(ctx, lr)
	r.Values["grad_norm"], r.Values["lr"] = norm, lr
	if err != nil {
		return r, err
	}
	elapsed, known, err := clock.stop(ctx, l.model.Device)
	if known {
		r.Values["update_gpu_seconds"] = elapsed.Seconds()
	}
	return r, err
}

func (l *Learner) zeroGrad(ctx context.Context) error {
	return l.model.Device.Do(ctx, func(*torch.Scope) error {
		l.grad.Zero_()
		if l.part != nil {
			l.part.Zero_() // a refused micro-batch may have left something
		}
		return nil
	})
}

// Steps is the number of updates made.
func (l *Learner) Steps() int64 { return l.steps }

// Moments are the optimizer's flat fp32 buffers, for checkpoints.
func (l *Learner) Moments() (m, v *torch.Tensor) { return l.m, l.v }

// SetSteps continues the count of a checkpoint.
func (l *Learner) SetSteps(n int64) { l.steps = n }

// Close frees gradient and moments.
func (l *Learner) Close(ctx context.Context) error {
	return l.model.Device.Do(ctx, func(*torch.Scope) error {
		for _, p := range l.params.Leaves() {
			p.Leaf.SetGrad(nil)
			p.Leaf.RequireGrad(false)
		}
		for _, t := range []*torch.Tensor{l.grad, l.part, l.m, l.v} {
			t.Drop()
		}
		return nil
	})
}
