package local

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// batch is the work of one forward pass.
type batch struct {
	moves  []move // blocks to copy before the pass
	work   []work
	ready  []*sequence // sequences whose next token is sampled from this pass, in the order of `last`
	last   []int32     // row of each ready sequence's newest token
	rows   int
	places []int32  // indices in the cache's block tables
	blocks []int32  // new blocks of the batch's sequences: blocks[i] is written at places[i]
	routes []uint16 // experts of the rows, after the pass; see readRoutes
}

// work is consecutive rows of one sequence: its tokens, beginning with q.state.filled.
type work struct {
	q    *sequence
	rows int
}

// planBatch takes the new row of every decoding sequence first, then rows of prompts up to limit. A prompt that does
// not fit continues in the next pass. Rows with the same adapters are adjacent.
func planBatch(running []*sequence, limit int) *batch {
	var all []work
	rows := 0
	for _, decoding := range []bool{true, false} {
		for _, q := range running {
			missing := len(q.tokens) - q.state.filled
			if (missing == 1) != decoding {
				continue
			}
			n := q.state.cached.tokensToSnapshot(q.state.filled, min(missing, max(limit-rows, 0)))
			if decoding {
				n = 1
			}
			if n > 0 {
				all = append(all, work{q, n})
				rows += n
			}
		}
	}
	slices.SortStableFunc(all, func(a, b work) int { return cmp.Compare(a.q.tenant.number, b.q.tenant.number) })
	b := &batch{}
	for _, w := range all {
		b.add(w)
	}
	return b
}

func (b *batch) add(w work) {
	b.work = append(b.work, w)
	b.rows += w.rows
	if w.q.state.filled+w.rows == len(w.q.tokens) {
		b.ready = append(b.ready, w.q)
		b.last = append(b.last, int32(b.rows-1))
	}
}

// decodes reports whether every row is a sequence's newest token.
func (b *batch) decodes() bool { return b.rows == len(b.ready) && b.rows == len(b.work) }

const (
	noSlot   = -1 // of a padding row
	noTenant = -1
)

// inputsOfRow is the number of inputs of a row.
const inputsOfRow = 6

// inputs returns tokens, slots, positions, lengths, tenants and recurrent states of the batch's rows, int32 [inputsOfRow, n], with padding
// rows up to n.
func (b *batch) inputs(n int) []int32 {
	all := make([]int32, inputsOfRow*n)
	id, slot, pos, length, tenant, state := all[:n], all[n:2*n], all[2*n:3*n], all[3*n:4*n], all[4*n:5*n], all[5*n:]
	for i := b.rows; i < n; i++ {
		slot[i], tenant[i], state[i] = noSlot, noTenant, noState
	}
	r := 0
	for _, w := range b.work {
		for i := w.q.state.filled; i < w.q.state.filled+w.rows; i++ {
			id[r], slot[r], pos[r], length[r], tenant[r], state[r] = w.q.tokens[i], int32(w.q.state.slot), int32(i), int32(i+1), int32(w.q.tenant.number),
				w.q.state.cached.state
			r++
		}
	}
	return all
}

// pass runs the batch: it copies blocks, makes one forward pass over all rows, and samples for the ready sequences.
func (e *Engine) pass(b *batch) (sampled []token, err error) {
	// Not a request's context: a cancelled request must not fail the other requests of the batch.
	err = e.dev.Do(context.Background(), func(s *torch.Scope) (err error) {
		s.OnIdleThreads(func() {
			dropEndedStates(e.pages)
			sampled, err = e.executor.compute(s, b)
		})
		return err
	})
	return sampled, err
}

// executor runs passes. It is used on the device's thread only.
type executor struct {
	model    *model.Model
	opt      Options
	groups   int // of layers, each with its own block table
	cache    *model.Cache
	decoder  *model.Decoder       // of all tenants
	captures bool                 // decode passes are captured as CUDA graphs
	graphs   map[int]*decodeGraph // by number of rows; nil if a pass cannot be captured; empty on a CPU
}

// bind makes a decoder for the tenants' models, and drops the graphs of the previous decoder. models has nil for an unused number.
func (e *executor) bind(models []*model.Model) error {
	decoder, err := e.model.MultiAdapterDecoder(models)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	e.decoder = decoder
	e.dropGraphs()
	return nil
}

func (e *executor) compute(s *torch.Scope, b *batch) (sampled []token, err error) {
	for _, m := range b.moves {
		if m.group == stateGroup {
			e.cache.CopyState(int64(m.from), int64(m.to))
		} else {
			e.cache.Copy(m.group, int64(m.from), int64(m.to))
		}
	}
	parts := []*batch{b}
	if e.captures {
		parts = b.parts()
	}
	results := make([]result, len(parts))
	for i, part := range parts { // launch all of them before the first wait for tokens
		e.listNewBlocks(part)
		if results[i], err = e.launchPart(s, part); err != nil {
			return nil, err
		}
	}
	for _, tokens := range results {
		of, err := tokens()
		if err != nil {
			return nil, err
		}
		sampled = append(sampled, of...)
	}
	b.merge(parts)
	return sampled, nil
}

// result waits for the tokens that a part of a pass has sampled.
type result func() ([]token, error)

// launchPart launches a forward pass, as a graph or operation by operation.
func (e *executor) launchPart(s *torch.Scope, b *batch) (result, error) {
	if b.decodes() && e.captures {
		if g := e.graphFor(s, b.rows); g != nil {
			return e.replay(s, g, b)
		}
	}
	logits := e.logits(s, b)
	return func() ([]token, error) {
		if logits == nil {
			return nil, nil
		}
		return sample(s, logits, b.ready)
	}, nil
}

// parts splits off the decoding rows as a pass of their own, which can be a graph.
func (b *batch) parts() (parts []*batch) {
	var decoding, prompts batch
	for _, w := range b.work {
		if len(w.q.tokens)-w.q.state.filled == 1 {
			decoding.add(w)
		} else {
			prompts.add(w)
		}
	}
	for _, part := range []*batch{&decoding, &prompts} {
		if part.rows > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// merge makes b the whole of its parts again, in their order.
func (b *batch) merge(parts []*batch) {
	whole := batch{moves: b.moves, rows: b.rows}
	for _, part := range parts {
		whole.work = append(whole.work, part.work...)
		whole.ready = append(whole.ready, part.ready...)
		whole.routes = append(whole.routes, part.routes...)
	}
	*b = whole
}

// listNewBlocks finds the new blocks of a batch's sequences: the tables on the device must contain them before the pass.
func (e *executor) listNewBlocks(b *batch) {
	for _, w := range b.work {
		for g, blocks := range w.q.state.cached.tables {
			for i := w.q.state.listed[g]; i < len(blocks); i++ {
				b.places = append(b.places, e.cache.Place(g, w.q.state.slot, i))
				b.blocks = append(b.blocks, blocks[i])
			}
			w.q.state.listed[g] = len(blocks)
		}
	}
}

// uploaded copies arrays of numbers to the device in one copy, and returns each of them.
func uploaded(s *torch.Scope, parts ...[]int32) (on []*torch.Tensor) {
	all := slices.Concat(parts...)
	together, at := s.FromInt32(all, int64(len(all))), int64(0)
	for _, part := range parts {
		on = append(on, together.Narrow(0, at, int64(len(part))))
		at += int64(len(part))
	}
	return on
}

// logits returns the logits [ready, vocabulary] of the ready sequences' newest tokens, nil if no sequence is ready.
func (e *executor) logits(s *torch.Scope, b *batch) *torch.Tensor {
	if !arch.Cached(e.model.Config) {
		return logitsOfModule(e, s, b)
	}
	chosen := routes(s, &e.model.Config, b.rows)
	on := uploaded(s, b.inputs(b.rows), b.places, b.blocks, b.last)
	if len(b.places) > 0 {
		e.cache.List(on[1], on[2])
	}
	hidden := e.hidden(s, on[0].View(inputsOfRow, -1), chosen)
	b.readRoutes(chosen)
	switch len(b.ready) {
	case 0:
		return nil
	case b.rows:
		return e.head(hidden)
	}
	return e.head(hidden.IndexSelect(0, on[3]))
}

// hidden runs the forward pass over rows [inputsOfRow, n], as batch.inputs returns them, and writes their experts to chosen.
func (e *executor) hidden(s *torch.Scope, in, chosen *torch.Tensor) *torch.Tensor {
	rows := model.Rows{Sequence: in.Select(0, 1), Length: in.Select(0, 3), State: in.Select(0, 5)}
	return e.decoder.Hidden(s, in.Select(0, 0), model.Pass{Pos: in.Select(0, 2), Attention: e.cache.At(rows), Routes: &model.Routes{Chosen: chosen},
		Adapters: in.Select(0, 4)})
}

func (e *executor) head(hidden *torch.Tensor) *torch.Tensor {
	return torch.Logits(hidden, e.decoder.Head())
}
