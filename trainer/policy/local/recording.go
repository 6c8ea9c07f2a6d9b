package local

import (
	"context"
	"fmt"
	"math/bits"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// recording is a decode pass with a fixed number of rows as a CUDA graph. A single launch replaces hundreds, which would
// take longer than a GPU needs to read the weights of a small model. A pass uses the recording with the next power of two
// of rows, or with all slots; the surplus rows are padding.
type recording struct {
	graph      *torch.Graph
	in, logits *torch.Tensor // int32 [5, rows] as batch.inputs returns them; [rows, vocabulary]
	chosen     *torch.Tensor // experts of the rows, nil without
}

// recorded returns the logits of a pass in which every sequence decodes, nil if one of its size cannot be recorded. No second attempt is
// made then.
func (e *Engine) recorded(s *torch.Scope, b *batch) *torch.Tensor {
	size := min(1<<bits.Len(uint(b.rows-1)), e.opt.Slots)
	if m := e.model.Config.Mixture; m != nil && size*m.PerToken > torch.FewExpertRows {
		return nil
	}
	r, tried := e.recordings[size]
	if !tried {
		var err error
		if r, err = e.record(s, size); err != nil && e.opt.Note != nil {
			e.opt.Note(fmt.Sprintf("decode passes of %d rows run without a CUDA graph (engine.cuda_graphs), since it cannot be recorded: %v", size, err))
		}
		e.recordings[size] = r
	}
	if r == nil {
		return nil
	}
	r.in.CopyFrom(s.FromInt32(b.inputs(size), 5, int64(size)))
	r.graph.Replay()
	b.tell(r.chosen)
	return r.logits.Narrow(0, 0, int64(b.rows))
}

func (e *Engine) record(s *torch.Scope, size int) (*recording, error) {
	r := &recording{in: s.Keep(s.FromInt32((&batch{}).inputs(size), 5, int64(size)))}
	if chosen := routes(s, &e.model.Config, size); chosen != nil {
		r.chosen = s.Keep(chosen)
	}
	var err error
	r.graph, err = s.Record(func() {
		if r.logits != nil {
			r.logits.Drop()
		}
		s.Scoped(func() { r.logits = s.Keep(e.head(e.hidden(s, r.in, r.chosen))) })
	})
	if err != nil {
		r.drop()
		return nil, err
	}
	return r, nil
}

// dropRecordings frees all of them. What could not be recorded is not tried again.
func (e *Engine) dropRecordings() {
	for size, r := range e.recordings {
		if r != nil {
			r.drop()
			delete(e.recordings, size)
		}
	}
}

func (r *recording) drop() {
	if r.graph != nil {
		r.graph.Drop()
	}
	r.in.Drop()
	if r.chosen != nil {
		r.chosen.Drop()
	}
	if r.logits != nil {
		r.logits.Drop()
	}
}

// Recorded returns the numbers of rows whose decode passes are CUDA graphs, in ascending order. It waits for the pass that runs.
func (t *Tenant) Recorded(ctx context.Context) (sizes []int, err error) {
	err = t.engine.dev.Do(ctx, func(*torch.Scope) error {
		for size, r := range t.engine.recordings {
			if r != nil {
				sizes = append(sizes, size)
			}
		}
		return nil
	})
	slices.Sort(sizes)
	return sizes, err
}
