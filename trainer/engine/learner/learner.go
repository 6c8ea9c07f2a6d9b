// Package learner turns trajectories into an update of the weights: packed micro-batches, the policy
// loss and its gradient through our kernels, gradients into one flat buffer, AdamW.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package learner

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// Options holds the options of a learner. Only HeadRows has a default: package assemble fills in the configuration's values.
type Options struct {
	Group                 ranks.Group // the processes that train the parameters together; nil: only this process
	Objective             mgrpo.Objective
	Recomputed            bool // old log-probs from a forward pass of the trainer instead of the sampler's
	Temperature           float64
	Adam                  Adam
	MicroBatchTokens      int   // tokens of one forward and backward pass
	CheckpointActivations bool  // recompute activations in the backward pass
	HostState             bool  // AdamW's moments are in host memory; fp32 weights may be there, too (model.Options)
	HeadRows              int64 // rows of logits in memory at once; 0: the default, HeadRows(...)

	// For a mixture of experts: Replay uses the experts in Sequence.Routes, and the coefficient belongs to the
	// load-balancing loss.
	Replay        bool
	RouterAuxCoef float64

	Term term.Term // a program's own loss term; nil: none. One rank only
}

// Adam holds the optimizer's constants; each update receives its learning rate separately.
type Adam struct {
	Beta1, Beta2, Eps, WeightDecay float64
	Clip                           float64 // global gradient norm; 0 is off
}

// HeadRows returns the default number of rows of logits in memory at once: few, but enough for efficient products. A
// trained head needs more rows, because its gradient is read and written once for each piece of rows. A GPU needs still
// more rows to be busy.
func HeadRows(gpu, trained bool) int64 {
	switch {
	case gpu:
		return 4096
	case trained:
		return 512
	}
	return 256
}

// Learner trains one model's parameters.
//
// Each rank of a group has a learner, over a complete copy of the model or over a share of it. All ranks call the same
// methods with the same arguments. Each computes the loss of its share of the sequences, and updates its share of the
// parameters. An error or refusal on one rank is returned on every rank.
type Learner struct {
	State *State // the values that training changes, which checkpoints contain

	model  *model.Model // computes the forward and backward passes
	opt    Options
	ref    *model.Model // reference policy of the KL term; nil: no KL term, or SetReference was not called yet
	group  group
	grad   *gradient
	passes *passes
}

// New allocates gradient and moments and makes the leaves of params accumulate into the gradient. After an
// update, params must copy the weights to mod.
func New(ctx context.Context, mod *model.Model, params model.Params, opt Options) (*Learner, error) {
	d := newDivision(mod, params, opt.Group)
	if err := checkOptions(d, opt); err != nil {
		return nil, err
	}
	l := &Learner{State: &State{division: d, adam: opt.Adam}, model: mod, opt: opt, group: d.group}
	err := mod.Device.Do(ctx, func(s *torch.Scope) error {
		for _, moment := range []**model.Buffer{&l.State.m, &l.State.v} {
			var err error
			if *moment, err = model.NewBuffer(s, d.share.Numel(), opt.HostState); err != nil {
				return err
			}
		}
		l.grad = newGradient(s, d, opt.CheckpointActivations)
		if l.opt.HeadRows == 0 {
			head, ok := mod.Training.HeadMatrix().(*torch.Tensor)
			l.opt.HeadRows = HeadRows(mod.Device.IsCUDA(), ok && head.Grad() != nil)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("learner: gradient and optimizer state of %d parameters: %w (set train: false, or a smaller model)", params.Numel(), err)
	}
	l.passes = &passes{division: d, grad: l.grad, checkpointed: opt.CheckpointActivations, maxRows: max(opt.MicroBatchTokens, mod.Config.MaxPosition)}
	if err := l.group.complete(ctx, mod); err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// checkOptions refuses options that do not fit the model or the group.
func checkOptions(d *division, opt Options) error {
	n := d.params.Numel()
	if d.model.Gathered() && !opt.CheckpointActivations {
		return errors.New("learner: a model that no rank holds completely is trained layer by layer: set checkpoint_activations")
	}
	if !arch.Layered(d.model.Config) && (opt.CheckpointActivations || d.group.Size() > 1) {
		return errors.New("learner: a TorchScript module is computed as a whole, on one device: unset checkpoint_activations, and give one device")
	}
	if held := d.params.Master().Numel(); held != n && held != d.share.Numel() {
		return fmt.Errorf("learner: rank %d of %d holds %d of %d fp32 weights, but its share has %d", d.group.Rank(), d.group.Size(), held, n, d.share.Numel())
	}
	if m := d.model.Config.Mixture; m != nil && m.Sigmoid != nil && opt.RouterAuxCoef != 0 {
		return fmt.Errorf("learner: grpo.router_aux_coef: model_type %s has no load-balancing loss, "+
			"since its routers have no probabilities: set the key to 0", d.model.Config.Family)
	}
	if opt.Term != nil && d.group.Size() > 1 {
		return errors.New("learner: a loss term of a program works with one device only: its own parameters have no ranks")
	}
	return nil
}

// SetReference sets the reference policy of the KL term. The caller owns ref and closes it after the learner.
func (l *Learner) SetReference(ctx context.Context, ref *model.Model) error {
	l.ref = ref
	return l.group.complete(ctx, ref)
}

// Report describes one update. docs/metrics.md names the values.
type Report struct {
	Values  map[string]float64
	Skipped bool  // there was nothing to learn: no token had a gradient, or no sequence of positive weight had a trained token
	Refused error // not nil: the update was not made because of a malformed or non-finite value
}

// Watch sets a function that is called after every pass of Prepare and Update, with the number of finished passes and their
// total. All ranks make as many passes as the rank with the most micro-batches. nil removes the function.
func (l *Learner) Watch(each func(done, total int)) { l.passes.watch = each }

// Prepare sets the log-probs that the objective needs before the first update of a step. Old log-probs are recomputed
// if Options.Recomputed is set; otherwise they are the sampler's. Reference log-probs are computed if there is a KL
// term.
func (l *Learner) Prepare(ctx context.Context, batch []*Sequence) error {
	for _, q := range batch {
		if err := errors.Join(q.check(l.model.Config.VocabSize), q.checkRoutes(l.model.Config)); err != nil {
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

// Update makes one optimizer step on a minibatch of sequences that went through Prepare. If it refuses the update,
// Report.Refused is the reason, and weights, moments and count do not change. An error means that the device or a
// library failed.
func (l *Learner) Update(ctx context.Context, minibatch []*Sequence, lr float64) (Report, error) {
	r, err := l.update(ctx, byID(minibatch), lr)
	if isRefusal(err) {
		r.Refused, err = err, nil
	}
	return r, err
}

// isRefusal reports whether err is a refusal of a batch or gradient (docs/algorithm.md §7) and not a failure of the
// device or a library.
func isRefusal(err error) bool {
	var loss *mgrpo.Refusal
	var kernel *kernels.Error
	var op *torch.Error
	var theirs refusal
	return errors.As(err, &loss) || errors.As(err, &theirs) || (errors.As(err, &kernel) && kernel.Status == kernels.NonFinite) ||
		(errors.As(err, &op) && op.Status == kernels.NonFinite) // logits, refused by the head's C++ code
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
	if err == nil {
		err = l.zeroGrad(ctx)
	}
	if err := l.runMinibatch(ctx, batch, loss, lr, err); err != nil {
		return Report{}, loss.added.finish(ctx, l.model.Device, lr, &Report{}, err)
	}
	r := Report{Values: loss.values(), Skipped: len(loss.learning) == 0}
	if unchanged, err := loss.added.leavesPolicyUnchanged(ctx, l); unchanged || err != nil || r.Skipped {
		r.Skipped = true
		return r, loss.added.finish(ctx, l.model.Device, lr, &r, err)
	}
	norm, err := l.State.apply(ctx, l.grad, lr)
	err = loss.added.finish(ctx, l.model.Device, lr, &r, err)
	r.Values[metrics.GradNorm], r.Values[metrics.LR] = norm, lr
	if err != nil {
		return r, err
	}
	elapsed, known, err := clock.stop(ctx, l.model.Device)
	if known {
		r.Values[metrics.UpdateGPUSeconds] = elapsed.Seconds()
	}
	return r, err
}

// runMinibatch runs this rank's micro-batches, and sums up the loss of all ranks. Each micro-batch also sums up its gradient
// over the ranks if gradient.part is not nil; otherwise gradient.norm does so later. ownErr is the reason why this rank cannot
// take part. If one rank cannot, all return an error.
func (l *Learner) runMinibatch(ctx context.Context, batch []*Sequence, loss *minibatchLoss, lr float64, ownErr error) error {
	load := make([]int, l.group.Size())
	learning := l.ownMicroBatches(loss.learning, l.opt.MicroBatchTokens, forwardAndBackward, load)
	observed := l.ownMicroBatches(loss.observed, l.opt.MicroBatchTokens, forwardOnly, load)
	all, err := l.plan(ctx, batch, lr, learning, len(observed), ownErr)
	if err != nil {
		return err
	}
	loss.routing = routing{cfg: l.model.Config, replay: l.opt.Replay, balance: l.opt.RouterAuxCoef, total: all.Rows}
	l.passes.done, l.passes.total = 0, all.Passes+all.Observed
	err = l.passes.run(ctx, passSeries{model: l.model, micro: learning, n: all.Passes, backward: true,
		run: func(micro []*Sequence) error { return loss.pass(ctx, micro, true) }})
	// Trajectories of advantage 0 have no gradient, but they count in the statistics.
	err = l.passes.run(ctx, passSeries{model: l.model, micro: observed, n: all.Observed, failed: err,
		run: func(micro []*Sequence) error { return loss.pass(ctx, micro, false) }})
	parts, err := agree(ctx, l.group, loss.lossPart, err, loss.routing.bytes())
	if err != nil {
		return err
	}
	loss.lossPart = lossPart{}
	for r, p := range parts {
		if n := len(p.Routed.Load); n > 0 && n != loss.routing.loads() {
			return fmt.Errorf("learner: rank %d counted the tokens of %d experts instead of %d: it has a different model", r, n, loss.routing.loads())
		}
		loss.add(p)
	}
	return nil
}

func (l *Learner) zeroGrad(ctx context.Context) error {
	return l.model.Device.Do(ctx, func(*torch.Scope) error {
		l.grad.zero()
		return nil
	})
}

// Logits calls model.Logits on a model whose layers are divided among the ranks. The other ranks must call JoinForward.
func (l *Learner) Logits(ctx context.Context, ids []int32, ends []int) (logits [][]float32, err error) {
	err = l.passes.run(ctx, passSeries{model: l.model, micro: [][]*Sequence{nil}, n: 1, run: func([]*Sequence) error {
		logits, err = l.model.LogitsOf(ctx, ids, ends, func(s *torch.Scope, in model.Packed) (*torch.Tensor, error) {
			return l.passes.hidden(ctx, s, l.model, in)
		})
		return err
	}})
	return logits, err
}

// JoinForward takes part in a forward pass of another rank with this rank's share of the layers.
func (l *Learner) JoinForward(ctx context.Context) error {
	return l.passes.run(ctx, passSeries{model: l.model, n: 1})
}

// Close frees gradient and moments.
func (l *Learner) Close(ctx context.Context) error {
	return l.model.Device.Do(ctx, func(*torch.Scope) error {
		l.grad.drop(l.State.params.Leaves())
		return errors.Join(l.State.m.Drop(), l.State.v.Drop())
	})
}
