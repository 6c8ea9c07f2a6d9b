package local

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// recording is a decode pass with a fixed number of rows as a CUDA graph, from the blocks that its sequences open to
// the tokens that it samples. A single launch replaces hundreds, which would take longer than a GPU needs to read the
// weights of a small model. A pass uses the recording with the next power of two of rows, or with all slots; the
// surplus rows are padding.
type recording struct {
	graph   *torch.Graph
	rows    int
	entries int           // new blocks that a pass can name
	in      *torch.Tensor // int32, the inputs of a pass: see parts
	out     *torch.Tensor // int32 [2+2*rows], the sampled tokens: see read
	logits  *torch.Tensor // [rows, vocabulary]
	chosen  *torch.Tensor // experts of the rows, or nil
}

// recordingOf returns the recording of decode passes of `rows` rows, or nil if they cannot be recorded. It tries only
// once for each number.
func (e *executor) recordingOf(s *torch.Scope, rows int) *recording {
	size := min(1<<bits.Len(uint(rows-1)), e.opt.Slots)
	if m := e.model.Config.Mixture; m != nil && size*m.PerToken > torch.FewExpertRows && !e.expertsTogether(s, m.FFN) {
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
	return r
}

// expertsTogether reports whether a pass with any number of rows of experts can be recorded.
func (e *executor) expertsTogether(s *torch.Scope, ffn int) bool {
	return s.ExpertsTogether(e.decoder.DType(), e.model.Config.Hidden, ffn)
}

// replay launches a pass of b and returns its result.
func (e *executor) replay(s *torch.Scope, r *recording, b *batch) (result, error) {
	if more := len(b.places) - r.entries; more > 0 { // for sequences that begin in reused slots
		on := uploaded(s, b.places[:more], b.blocks[:more])
		e.cache.List(on[0], on[1])
		b.places, b.blocks = b.places[more:], b.blocks[more:]
	}
	in, err := r.inputs(b, e.cache.Nowhere())
	if err != nil {
		return nil, err
	}
	r.in.SetInt32s(in)
	r.graph.Replay()
	return func() ([]token, error) {
		b.readRoutes(r.chosen)
		// Recorded sampling does not apply constraints.
		if slices.ContainsFunc(b.ready, func(q *sequence) bool { return q.constraint != nil }) {
			return sample(s, r.logits.Narrow(0, 0, int64(b.rows)), b.ready)
		}
		return r.read(b.rows)
	}, nil
}

// inputs returns the inputs of a pass of b, with padding: the sampling settings of its rows, the rows, and the places and
// blocks of new entries in the tables.
func (r *recording) inputs(b *batch, nowhere int32) ([]int32, error) {
	settings := make([]kernels.Sampling, r.rows)
	for i, q := range b.ready {
		settings[i] = q.settings()
	}
	if err := kernels.CheckSampling(settings); err != nil {
		return nil, fmt.Errorf("sampling: %w", err)
	}
	places, blocks := make([]int32, r.entries), make([]int32, r.entries)
	for i := copy(places, b.places); i < r.entries; i++ {
		places[i] = nowhere
	}
	copy(blocks, b.blocks)
	return slices.Concat(kernels.SamplingWords(settings), b.inputs(r.rows), places, blocks), nil
}

// parts splits the tensor of inputs: the settings of sampling, rows [inputsOfRow, rows] as batch.inputs returns them, places and
// blocks.
func (r *recording) parts() (settings, rows, places, blocks *torch.Tensor) {
	at := int64(0)
	next := func(n int) *torch.Tensor {
		part := r.in.Narrow(0, at, int64(n))
		at += int64(n)
		return part
	}
	return next(r.rows * kernels.SamplingSize), next(inputsOfRow*r.rows).View(inputsOfRow, -1), next(r.entries), next(r.entries)
}

// read waits for the tokens of the first rows of a pass. out has the first row that could not be sampled, an int64,
// then the tokens of all rows, and then the bits of their log-probs.
func (r *recording) read(rows int) ([]token, error) {
	host := make([]int32, 2+2*r.rows)
	r.out.Int32s(host)
	if bad := host[0]; host[1] >= 0 && int(bad) < rows { // padding rows do not matter
		return nil, fmt.Errorf("sampling: %w", kernels.NonFiniteRow(int64(bad)))
	}
	return tokensOf(host[2:][:rows], host[2+r.rows:][:rows]), nil
}

func (e *executor) record(s *torch.Scope, size int) (*recording, error) {
	r := &recording{rows: size, entries: size * e.groups, out: s.Keep(s.Zeros(torch.Int32, int64(2+2*size)))}
	padding, err := r.inputs(&batch{}, e.cache.Nowhere())
	if err != nil {
		return nil, err
	}
	r.in = s.Keep(s.FromInt32(padding, int64(len(padding))))
	if chosen := routes(s, &e.model.Config, size); chosen != nil {
		r.chosen = s.Keep(chosen)
	}
	var refused error
	r.graph, err = s.Record(func() {
		r.logits.Drop()
		s.Scoped(func() { refused = cmp.Or(refused, e.decode(s, r)) })
	})
	if err = cmp.Or(err, refused); err != nil {
		r.drop()
		return nil, err
	}
	return r, nil
}

// decode launches the operations of a recording.
func (e *executor) decode(s *torch.Scope, r *recording) error {
	settings, rows, places, blocks := r.parts()
	e.cache.List(places, blocks)
	r.logits = s.Keep(e.head(e.hidden(s, rows, r.chosen)))
	n := int64(r.rows)
	bad, ids, logp := r.out.Narrow(0, 0, 2), r.out.Narrow(0, 2, n), r.out.Narrow(0, 2+n, n)
	bad.Fill_(-1)
	return kernels.EnqueueSample(model.Backend(s), logitsOf(r.logits), settings.Ptr(), ids.Ptr(), logp.Ptr(), bad.Ptr())
}

// dropRecordings frees all recordings. Sizes that could not be recorded are not tried again.
func (e *executor) dropRecordings() {
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
	for _, t := range []*torch.Tensor{r.in, r.out, r.logits, r.chosen} {
		t.Drop()
	}
}

// GraphSizes returns the numbers of rows whose decode passes are CUDA graphs, in ascending order. It waits for the
// current pass.
func (t *Tenant) GraphSizes(ctx context.Context) (sizes []int, err error) {
	err = t.engine.dev.Do(ctx, func(*torch.Scope) error {
		for size, r := range t.engine.executor.recordings {
			if r != nil {
				sizes = append(sizes, size)
			}
		}
		return nil
	})
	slices.Sort(sizes)
	return sizes, err
}
