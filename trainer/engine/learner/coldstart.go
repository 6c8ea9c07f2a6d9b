package learner

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// ColdStartUpdate makes one optimizer step on demonstrations. The loss is the mean negative log-prob over all trained tokens
// of the batch. Weight and Advantage are not read.
func (l *Learner) ColdStartUpdate(ctx context.Context, demonstrations []*Sequence, lr float64) (Report, error) {
	batch := byID(demonstrations)
	total, tokens := 0, 0
	for _, q := range batch {
		if err := q.check(l.model.Config.VocabSize); err != nil {
			return Report{}, err
		}
		total += len(q.trained())
		tokens += len(q.Tokens)
	}
	if total == 0 {
		return Report{}, fmt.Errorf("learner: none of %d demonstrations has a trained token", len(batch))
	}
	const whole = 0 // demonstrations have no groups to keep together
	mine := l.ownMicroBatches(batch, whole, forwardAndBackward, make([]int, l.group.Size()))
	all, err := l.plan(ctx, batch, lr, mine, 0, l.zeroGrad(ctx))
	if err != nil {
		return Report{}, err
	}
	own := 0.0
	err = l.passes.run(ctx, passSeries{model: l.model, micro: mine, n: all.Passes, backward: true, run: func(micro []*Sequence) error {
		part, err := l.coldStartPass(ctx, micro, total)
		own += part
		return err
	}})
	parts, err := agree(ctx, l.group, own, err, 0)
	if err != nil {
		return Report{}, err
	}
	loss := 0.0
	for _, part := range parts {
		loss += part
	}
	norm, err := l.State.apply(ctx, l.grad, lr)
	return Report{Values: map[string]float64{
		metrics.Loss: loss, metrics.GradNorm: norm, metrics.LR: lr, metrics.TrainedTokens: float64(total), metrics.Tokens: float64(tokens),
	}}, err
}

// coldStartPass accumulates the gradient of one micro-batch and returns its share of the loss.
func (l *Learner) coldStartPass(ctx context.Context, micro []*Sequence, total int) (loss float64, err error) {
	err = l.model.Device.Do(ctx, func(s *torch.Scope) error {
		b := packerOf(l.model).pack(s, micro)
		if b.n == 0 {
			return nil
		}
		lossOf := func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			logp, _ := l.head(l.model, hidden.IndexSelect(0, b.source), b)
			loss = -logp.Detach().Sum().Item() / float64(total)
			return []*torch.Tensor{logp}, []*torch.Tensor{s.Full(torch.Float32, -1/float64(total), int64(b.n))}
		}
		s.Training(func() { err = l.passes.forwardBackward(ctx, s, b.in, lossOf) })
		return err
	})
	return loss, err
}
