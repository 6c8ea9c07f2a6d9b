package local

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// logitsOfModule returns the logits [ready, vocabulary] of the ready sequences' newest tokens for a model without a cache.
// If the module has step, each of these sequences continues from its own state. Otherwise each is computed whole, at most opt.PassRows rows
// at a time unless one sequence is longer. It returns nil if no sequence is ready. The scheduler reserves slots as for other models,
// but there is no cache to read.
func logitsOfModule(e *executor, s *torch.Scope, b *batch) *torch.Tensor {
	if len(b.ready) == 0 {
		return nil
	}
	newest := s.Empty(torch.Float32, int64(len(b.ready)), int64(e.model.Config.Hidden))
	if model.HasStep(e.model) {
		for i, q := range b.ready {
			if q.state.cached.step == nil {
				q.state.cached.step = &model.State{}
			}
			s.Scoped(func() { newest.Narrow(0, int64(i), 1).CopyFrom(q.state.cached.step.Advance(s, e.model, q.tokens)) })
		}
		return e.head(newest)
	}
	for from := 0; from < len(b.ready); {
		to, rows := from, 0
		for to < len(b.ready) && (to == from || rows+len(b.ready[to].tokens) <= e.opt.PassRows) {
			rows += len(b.ready[to].tokens)
			to++
		}
		s.Scoped(func() {
			newest.Narrow(0, int64(from), int64(to-from)).CopyFrom(newestHidden(e.model, s, b.ready[from:to]))
		})
		from = to
	}
	return e.head(newest)
}

// newestHidden returns the hidden states of the sequences' last tokens.
func newestHidden(m *model.Model, s *torch.Scope, sequences []*sequence) *torch.Tensor {
	var ids, positions, last []int32
	first := []int32{0}
	for _, q := range sequences {
		for i := range q.tokens {
			positions = append(positions, int32(i))
		}
		ids = append(ids, q.tokens...)
		first, last = append(first, int32(len(ids))), append(last, int32(len(ids)-1))
	}
	on := uploaded(s, ids, positions, first, last)
	return m.Forward(s, model.Packed{IDs: on[0], Pos: on[1], Cu: on[2]}).IndexSelect(0, on[3])
}

// dropEndedStates drops the states of a module's step whose sequences have ended. Call it inside Do.
func dropEndedStates(p *pages) {
	for _, st := range p.ended {
		st.Drop()
	}
	p.ended = nil
}

// freeStates drops the states of ended sequences before the scheduler waits. It reports whether there were any. If so, e.mu was
// unlocked meanwhile, and there may be work.
func (e *Engine) freeStates() bool {
	if len(e.pages.ended) == 0 {
		return false
	}
	e.mu.Unlock()
	defer e.mu.Lock()
	if err := e.dev.Do(context.Background(), func(*torch.Scope) error { dropEndedStates(e.pages); return nil }); err != nil {
		e.pages.ended = nil // the device is closed, and its tensors with it
	}
	return true
}
