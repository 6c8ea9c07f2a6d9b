package learner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// minibatchLoss is the policy loss of one minibatch: the coefficient of every trajectory, which depends on the whole
// minibatch, and the sums over its micro-batches.
type minibatchLoss struct {
	learner     *Learner
	coefficient map[*Sequence]float64
	totals      kernels.LossTotals
	routing     routing
	lossPart

	learning []*Sequence // sequences with a gradient
	observed []*Sequence // advantage 0 and no other loss term: they count in the statistics only
	added    *minibatchTerm
}

// lossPart holds sums over the micro-batches of a rank.
type lossPart struct {
	Sums        kernels.LossSums
	Gap, Tokens float64 // sum of |new - behaviour| over trained tokens of sequences that are not stale, and their number
	Routed      routingCounts
}

func (p *lossPart) add(other lossPart) {
	p.Sums.Merge(other.Sums)
	p.Gap += other.Gap
	p.Tokens += other.Tokens
	p.Routed.add(other.Routed)
}

var errNothingToRead = errors.New("no trajectory of positive weight has a trained token")

// newMinibatchLoss computes the coefficients c_j over the whole minibatch, before it is cut into micro-batches.
func (l *Learner) newMinibatchLoss(batch []*Sequence) (*minibatchLoss, error) {
	t, index, first := trajectoriesOf(batch)
	coefficient, totals, err := kernels.LossCoefficients(l.opt.Objective, t)
	var refused *mgrpo.Refusal
	if errors.As(err, &refused) && refused.Code == mgrpo.EmptyBatch {
		return nil, errNothingToRead
	}
	if err != nil {
		return nil, fmt.Errorf("learner: %w", withID(err, first))
	}
	p := &minibatchLoss{learner: l, coefficient: map[*Sequence]float64{}, totals: totals}
	for i, q := range batch {
		p.coefficient[q] = coefficient[index[i]]
		switch {
		case p.coefficient[q] == 0 || len(q.trained()) == 0: // one row of a trajectory may have no trained token
		case q.Advantage == 0 && l.opt.Objective.KLCoef == 0 && l.opt.Objective.EntropyCoef == 0:
			p.observed = append(p.observed, q)
		default:
			p.learning = append(p.learning, q)
		}
	}
	p.added = addTerm(l.opt.Term, l.State.Updates(), p)
	return p, nil
}

// trajectoriesOf sums up the values on which the coefficients depend. index is the index of each sequence's
// trajectory, and first is the first sequence of each trajectory. A trajectory of several rows counts once, with the
// trained tokens of all rows, so a token weighs the same whether or not its conversation was cut into rows.
func trajectoriesOf(batch []*Sequence) (t kernels.Trajectories, index []int, first []*Sequence) {
	known := map[string]int{}
	for _, q := range batch {
		n, ok := known[q.TrajectoryID]
		if !ok {
			n = len(first)
			t.Group = append(t.Group, q.Group)
			t.Weight = append(t.Weight, q.Weight)
			t.Advantage = append(t.Advantage, q.Advantage)
			t.Trained = append(t.Trained, 0)
			first = append(first, q)
			known[q.TrajectoryID] = n
		}
		t.Trained[n] += int64(len(q.trained()))
		index = append(index, n)
	}
	return t, index, first
}

// pass runs one micro-batch: forward, policy loss and, when it learns, backward.
func (p *minibatchLoss) pass(ctx context.Context, micro []*Sequence, learns bool) error {
	l := p.learner
	return l.model.Device.Do(ctx, func(s *torch.Scope) error {
		b := packerOf(l.model).pack(s, micro)
		count := p.routing.watch(s, &b, micro, learns, &p.Routed)
		lossOf := p.lossOfLogProbs
		if learns && l.opt.Objective.Ratio.TokenLevel() && p.added == nil {
			lossOf = p.lossOfHidden
		}
		var err error
		outputsAndGrads := func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			outputs, grads, err = lossOf(s, micro, b, hidden.IndexSelect(0, b.source))
			if err != nil { // a refused micro-batch has gradient 0
				for i, out := range outputs {
					grads[i] = s.Zeros(out.DType(), out.Shape()...)
				}
			}
			return outputs, grads
		}
		var lost error
		s.Training(func() {
			if learns {
				lost = l.passes.forwardBackward(ctx, s, b.in, outputsAndGrads)
				return
			}
			var hidden *torch.Tensor
			if hidden, lost = l.passes.hidden(ctx, s, l.model, b.in); lost == nil {
				outputsAndGrads(hidden)
			}
		})
		if err = cmp.Or(lost, err); err == nil {
			count()
		}
		return err
	})
}

// lossOfHidden computes the loss of a token-level ratio and its gradient for the hidden rows [N, Hidden] of the trained
// tokens. It accumulates the head's gradient in the same pass, while the logits are in memory.
func (p *minibatchLoss) lossOfHidden(s *torch.Scope, micro []*Sequence, b packed, rows *torch.Tensor) (outputs, grads []*torch.Tensor, err error) {
	l := p.learner
	head, err := torch.LinearPolicyLoss(rows, l.model.Training.Head(), l.grad.head, b.target, l.opt.Temperature, l.opt.HeadRows,
		p.lossBatch(s, micro), l.opt.Objective)
	if err != nil {
		err = fmt.Errorf("learner: %w", withID(err, micro))
	} else {
		p.merge(head.Sums, head.LogProb, micro)
	}
	return []*torch.Tensor{rows}, []*torch.Tensor{head.DHidden}, err
}

// lossOfLogProbs computes the loss and its gradient for the log-probs and entropies [N] of the trained tokens. A
// sequence-level ratio needs all log-probs of the sequence first.
func (p *minibatchLoss) lossOfLogProbs(s *torch.Scope, micro []*Sequence, b packed,
	rows *torch.Tensor) (outputs, grads []*torch.Tensor, err error) {
	logp, entropy := p.learner.head(p.learner.model, rows, b)
	dlogp, dentropy := s.Empty(torch.Float32, int64(b.n)), s.Empty(torch.Float32, int64(b.n))
	batch := p.lossBatch(s, micro)
	batch.LogpNew, batch.Entropy = logp.Detach().Ptr(), entropy.Detach().Ptr()
	sums, err := kernels.PolicyLoss(model.Backend(s), batch, p.learner.opt.Objective, dlogp.Ptr(), dentropy.Ptr())
	if err != nil {
		err = fmt.Errorf("learner: %w", withID(err, micro))
	} else {
		p.merge(sums, logp.Detach(), micro)
	}
	outputs, grads = []*torch.Tensor{logp, entropy}, []*torch.Tensor{dlogp, dentropy}
	if err == nil {
		var more, moreGrads []*torch.Tensor
		if more, moreGrads, err = p.added.lossOf(s, micro, rows, logp); err != nil {
			err = fmt.Errorf("learner: the program's loss term: %w", err)
		}
		outputs, grads = append(outputs, more...), append(grads, moreGrads...)
	}
	return outputs, grads, err
}

// head computes log-prob and entropy of the trained tokens, whose hidden states are rows.
func (l *Learner) head(m *model.Model, rows *torch.Tensor, b packed) (logp, entropy *torch.Tensor) {
	return torch.HeadLogProb(rows, m.Training.Head(), b.target, l.opt.Temperature, l.opt.HeadRows)
}

// lossBatch makes the loss kernel's inputs for a micro-batch's trained tokens, without the new log-probs and entropies.
func (p *minibatchLoss) lossBatch(s *torch.Scope, micro []*Sequence) kernels.LossBatch {
	old := gather(micro, func(q *Sequence) []float32 { return q.old })
	n := int64(len(old))
	batch := kernels.LossBatch{
		CuSeqlens: []int64{0}, DType: kernels.Float32,
		Mask:    s.Full(torch.Uint8, 1, n).Ptr(), // all rows are trained tokens
		LogpOld: s.FromFloat32(old, n).Ptr(),
	}
	if p.learner.opt.Recomputed {
		batch.LogpBehaviour = s.FromFloat32(gather(micro, func(q *Sequence) []float32 { return q.Behaviour }), n).Ptr()
	}
	if p.learner.ref != nil {
		batch.LogpRef = s.FromFloat32(gather(micro, func(q *Sequence) []float32 { return q.ref }), n).Ptr()
	}
	for _, q := range micro {
		batch.CuSeqlens = append(batch.CuSeqlens, batch.CuSeqlens[len(batch.CuSeqlens)-1]+int64(len(q.trained())))
		batch.Weight = append(batch.Weight, q.Weight)
		batch.Advantage = append(batch.Advantage, q.Advantage)
		batch.Coefficient = append(batch.Coefficient, p.coefficient[q])
	}
	return batch
}

// merge adds the sums of a micro-batch, and the differences between the trainer's and the sampler's log-probs. It leaves out the
// differences of stale sequences: older weights give other log-probs even if both forward passes are correct.
func (p *minibatchLoss) merge(sums kernels.LossSums, logp *torch.Tensor, micro []*Sequence) {
	p.Sums.Merge(sums)
	behaviour := gather(micro, func(q *Sequence) []float32 { return q.Behaviour })
	now := make([]float32, len(behaviour))
	logp.Float32s(now)
	at := 0
	for _, q := range micro {
		n := len(q.trained())
		if !q.Stale {
			for i := at; i < at+n; i++ {
				p.Gap += math.Abs(float64(now[i]) - float64(behaviour[i]))
			}
			p.Tokens += float64(n)
		}
		at += n
	}
}

// values returns the statistics of the update under the names of docs/metrics.md.
func (p *minibatchLoss) values() map[string]float64 {
	v := p.Sums.Stats(p.totals).Values()
	if p.Tokens > 0 {
		v[metrics.GapMean] = p.Gap / p.Tokens
	}
	p.routing.values(p.Routed, v)
	batchTokens := 0
	for _, q := range p.learning {
		batchTokens += len(q.Tokens)
	}
	v[metrics.BatchTokens] = float64(batchTokens)
	return v
}

// withID adds the id of the refused trajectory to a refusal, which has only its index.
func withID(err error, micro []*Sequence) error {
	var refused *mgrpo.Refusal
	if errors.As(err, &refused) && refused.Trajectory != nil && *refused.Trajectory < len(micro) {
		return fmt.Errorf("%s: %w", micro[*refused.Trajectory].ID, err)
	}
	return err
}
