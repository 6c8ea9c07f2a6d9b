package learner

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// logProbs runs forward passes of m and calls set with the log-probs of each sequence's tokens, 0 for tokens that were
// not sampled.
func (l *Learner) logProbs(ctx context.Context, m *model.Model, batch []*Sequence, set func(*Sequence, []float32)) error {
	for _, run := range microBatches(byID(batch), l.opt.MicroBatchTokens) {
		var flat []float32
		err := m.Device.Do(ctx, func(s *torch.Scope) error {
			b := pack(s, run)
			if b.n == 0 {
				return nil
			}
			if l.opt.Replay && m == l.model && m.Config.Mixture != nil { // a reference chooses for itself
				b.in.Routes = &model.Routes{}
				b.replay(s, m.Config, run)
			}
			var hidden *torch.Tensor
			s.Training(func() { hidden = m.Forward(s, b.in).IndexSelect(0, b.source) })
			logp, _ := torch.HeadLogProb(hidden, m.Head(), b.target, l.opt.Temperature, l.opt.HeadRows)
			flat = make([]float32, b.n)
			logp.Float32s(flat)
			return nil
		})
		if err != nil {
			return err
		}
		for _, q := range run {
			values := make([]float32, len(q.Tokens))
			for _, t := range q.trained() {
				values[t], flat = flat[0], flat[1:]
			}
			set(q, values)
		}
	}
	return nil
}
