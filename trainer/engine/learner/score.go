package learner

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// logProbs calls set with the log-probs of each sequence's tokens under m, with 0 for tokens that were not sampled.
// Each rank runs the forward passes of its share and receives the log-probs of all ranks.
func (l *Learner) logProbs(ctx context.Context, m *model.Model, batch []*Sequence, set func(*Sequence, []float32)) error {
	type scored struct {
		Digest   uint64 // digest of the whole batch
		LogProbs []float32
	}
	p := packerOf(l.model)
	shares := p.divideAmongRanks(byID(batch), l.opt.MicroBatchTokens, forwardOnly, make([]int, l.group.Size()))
	own := scored{Digest: l.digest(byID(batch))}
	var mine [][]*Sequence
	passes, most := 0, 0
	for r, share := range shares {
		runs := p.microBatches(share, l.opt.MicroBatchTokens)
		if passes = max(passes, len(runs)); r == l.group.Rank() {
			mine = runs
		}
	}
	l.passes.done, l.passes.total = 0, passes
	err := l.passes.run(ctx, passSeries{model: m, micro: mine, n: passes, run: func(micro []*Sequence) error {
		part, err := l.forward(ctx, m, micro)
		own.LogProbs = append(own.LogProbs, part...)
		return err
	}})
	for _, q := range batch {
		most += 6 * len(q.Tokens) // size of a float32 in gob's encoding
	}
	all, err := agree(ctx, l.group, own, err, most)
	if err != nil {
		return err
	}
	for r, share := range shares {
		if all[r].Digest != all[0].Digest {
			return fmt.Errorf("learner: rank %d received a different batch from rank 0", r)
		}
		flat := all[r].LogProbs
		for _, q := range share {
			at := q.trained()
			if len(flat) < len(at) {
				return fmt.Errorf("learner: rank %d computed too few log-probs", r)
			}
			values := make([]float32, len(q.Tokens))
			for _, t := range at {
				values[t], flat = flat[0], flat[1:]
			}
			set(q, values)
		}
	}
	return nil
}

// forward returns the log-probs of the trained tokens of a micro-batch under m, in order.
func (l *Learner) forward(ctx context.Context, m *model.Model, run []*Sequence) (logProbs []float32, err error) {
	err = m.Device.Do(ctx, func(s *torch.Scope) error {
		b := packerOf(l.model).pack(s, run)
		if b.n == 0 {
			return nil
		}
		if l.opt.Replay && m == l.model && m.Config.Mixture != nil { // a reference chooses its own experts
			b.in.Routes = &model.Routes{}
			b.replay(s, m.Config, run)
		}
		var err error
		s.Training(func() {
			var hidden *torch.Tensor
			if hidden, err = l.passes.hidden(ctx, s, m, b.in); err != nil {
				return
			}
			logp, _ := l.head(m, hidden.IndexSelect(0, b.source), b)
			logProbs = make([]float32, b.n)
			logp.Float32s(logProbs)
		})
		return err
	})
	return logProbs, err
}
