package local

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// batch is the plan of one forward pass.
type batch struct {
	copies []placement // prefixes to copy before the pass
	work   []work
	ready  []*sequence // those whose next token is sampled from this pass, in order of `last`
	last   []int32     // row of each ready sequence's newest token
	rows   int
}

// work is a run of rows of one sequence: its tokens from q.filled on.
type work struct {
	q    *sequence
	rows int
}

// planBatch takes the one new row of every decoding sequence first, then fills up with prompts; a
// prompt longer than the room left is continued in the next pass.
func planBatch(running []*sequence, limit int) *batch {
	b := &batch{}
	for _, decoding := range []bool{true, false} {
		for _, q := range running {
			missing := len(q.tokens) - q.filled
			if (missing == 1) != decoding {
				continue
			}
			n := min(missing, max(limit-b.rows, 0))
			if decoding {
				n = 1
			}
			if n > 0 {
				b.add(q, n)
			}
		}
	}
	return b
}

func (b *batch) add(q *sequence, n int) {
	b.work = append(b.work, work{q, n})
	b.rows += n
	if q.filled+n == len(q.tokens) {
		b.ready = append(b.ready, q)
		b.last = append(b.last, int32(b.rows-1))
	}
}

// inputs flattens the plan to one entry a row.
func (b *batch) inputs() (ids, slot, pos, length []int32) {
	for _, w := range b.work {
		for i := w.q.filled; i < w.q.filled+w.rows; i++ {
			ids = append(ids, w.q.tokens[i])
			slot = append(slot, int32(w.q.slot))
			pos = append(pos, int32(i))
			length = append(length, int32(i+1))
		}
	}
	return ids, slot, pos, length
}

// pass runs the plan: copy prefixes, one forward over all rows, sample for the ready sequences.
func (e *Engine) pass(b *batch) ([]token, error) {
	var sampled []token
	// Not a request's context: one caller going away must not fail the others of the batch.
	err := e.dev.Do(context.Background(), func(s *torch.Scope) error {
		for _, c := range b.copies {
			e.cache.Copy(c.from, c.slot, c.reuse)
		}
		ids, slot, pos, length := b.inputs()
		n := int64(len(ids))
		rows := model.Rows{Slot: s.FromInt32(slot, n), Pos: s.FromInt32(pos, n), Length: s.FromInt32(length, n)}
		hidden := e.model.Generation.Hidden(s, s.FromInt32(ids, n), rows.Pos, e.cache.At(rows))
		if len(b.ready) == 0 {
			return nil
		}
		if int(n) != len(b.ready) {
			hidden = hidden.IndexSelect(0, s.FromInt32(b.last, int64(len(b.last))))
		}
		logits := torch.Linear(hidden, e.model.Generation.Head(), nil)
		var err error
		sampled, err = sample(s, logits, b.ready)
		return err
	})
	return sampled, err
}
