package local

import (
	"math/bits"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// recording is a decode pass of so many rows as a CUDA graph: one launch in the place of some hundreds, which take longer
// than a GPU needs to read the weights of a small model. A pass takes the recording of the next power of two, or of all
// slots; the rows it has no use for belong to none.
type recording struct {
	graph      *torch.Graph
	in, logits *torch.Tensor // of the rows
}

// recorded is the logits of a pass in which every sequence decodes.
func (e *Engine) recorded(s *torch.Scope, b *batch) *torch.Tensor {
	size := min(1<<bits.Len(uint(b.rows-1)), e.opt.Slots)
	r := e.recordings[size]
	if r == nil {
		r = e.record(s, size)
		e.recordings[size] = r
	}
	r.in.CopyFrom(s.FromInt32(b.inputs(size), 4, int64(size)))
	r.graph.Replay()
	return r.logits.Narrow(0, 0, int64(b.rows))
}

func (e *Engine) record(s *torch.Scope, size int) *recording {
	r := &recording{in: s.Keep(s.FromInt32((&batch{}).inputs(size), 4, int64(size)))}
	defer func() {
		if r.graph == nil { // it could not be recorded
			r.drop()
		}
	}()
	r.graph = s.Record(func() {
		if r.logits != nil {
			r.logits.Drop()
		}
		s.Scoped(func() { r.logits = s.Keep(e.head(e.hidden(s, r.in))) })
	})
	return r
}

func (r *recording) drop() {
	if r.graph != nil {
		r.graph.Drop()
	}
	r.in.Drop()
	if r.logits != nil {
		r.logits.Drop()
	}
}
