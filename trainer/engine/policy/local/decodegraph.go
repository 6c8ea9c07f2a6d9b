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

// decodeGraph is a decode pass with a fixed number of rows as a CUDA graph, from the blocks that its sequences open to
// the tokens that it samples. A single launch replaces hundreds, which would take longer than a GPU needs to read the
// weights of a small model. A pass uses the graph with the next power of two of rows, or with all slots; the
// surplus rows are padding.
type decodeGraph struct {
	graph   *torch.Graph
	rows    int
	entries int           // new blocks that a pass can name
	in      *torch.Tensor // int32, the inputs of a pass: see parts
	out     *torch.Tensor // int32 [2+2*rows], the sampled tokens: see read
	logits  *torch.Tensor // [rows, vocabulary]
	chosen  *torch.Tensor // experts of the rows, or nil
}

// graphFor returns the graph for decode passes of `rows` rows, or nil if they cannot be captured. It tries only
// once for each number.
func (e *executor) graphFor(s *torch.Scope, rows int) *decodeGraph {
	size := min(1<<bits.Len(uint(rows-1)), e.opt.Slots)
	if m := e.model.Config.Mixture; m != nil && size*m.PerToken > torch.FewExpertRows && !e.expertsTogether(s, m.FFN) {
		return nil
	}
	g, tried := e.graphs[size]
	if !tried {
		var err error
		if g, err = e.capture(s, size); err != nil && e.opt.Note != nil {
			e.opt.Note(fmt.Sprintf("decode passes of %d rows run without a CUDA graph (engine.cuda_graphs), since they cannot be captured: %v", size, err))
		}
		e.graphs[size] = g
	}
	return g
}

// expertsTogether reports whether a pass with any number of rows of experts can be captured.
func (e *executor) expertsTogether(s *torch.Scope, ffn int) bool {
	return s.ExpertsTogether(e.decoder.DType(), e.model.Config.Hidden, ffn)
}

// replay launches a pass of b and returns its result.
func (e *executor) replay(s *torch.Scope, g *decodeGraph, b *batch) (result, error) {
	if more := len(b.places) - g.entries; more > 0 { // for sequences that begin in reused slots
		on := uploaded(s, b.places[:more], b.blocks[:more])
		e.cache.List(on[0], on[1])
		b.places, b.blocks = b.places[more:], b.blocks[more:]
	}
	in, err := g.inputs(b, e.cache.PaddingPlace())
	if err != nil {
		return nil, err
	}
	g.in.SetInt32s(in)
	g.graph.Replay()
	return func() ([]token, error) {
		b.readRoutes(g.chosen)
		// Sampling in the graph does not apply constraints.
		if slices.ContainsFunc(b.ready, func(q *sequence) bool { return q.constraint != nil }) {
			return sample(s, g.logits.Narrow(0, 0, int64(b.rows)), b.ready)
		}
		return g.read(b.rows)
	}, nil
}

// inputs returns the inputs of a pass of b, with padding: the sampling settings of its rows, the rows, and the places and
// blocks of new entries in the tables.
func (g *decodeGraph) inputs(b *batch, paddingPlace int32) ([]int32, error) {
	settings := make([]kernels.Sampling, g.rows)
	for i, q := range b.ready {
		settings[i] = q.settings()
	}
	if err := kernels.CheckSampling(settings); err != nil {
		return nil, fmt.Errorf("sampling: %w", err)
	}
	places, blocks := make([]int32, g.entries), make([]int32, g.entries)
	for i := copy(places, b.places); i < g.entries; i++ {
		places[i] = paddingPlace
	}
	copy(blocks, b.blocks)
	return slices.Concat(kernels.SamplingWords(settings), b.inputs(g.rows), places, blocks), nil
}

// parts splits the tensor of inputs: the settings of sampling, rows [inputsOfRow, rows] as batch.inputs returns them, places and
// blocks.
func (g *decodeGraph) parts() (settings, rows, places, blocks *torch.Tensor) {
	at := int64(0)
	next := func(n int) *torch.Tensor {
		part := g.in.Narrow(0, at, int64(n))
		at += int64(n)
		return part
	}
	return next(g.rows * kernels.SamplingSize), next(inputsOfRow*g.rows).View(inputsOfRow, -1), next(g.entries), next(g.entries)
}

// read waits for the tokens of the first rows of a pass. out has the first row that could not be sampled, an int64,
// then the tokens of all rows, and then the bits of their log-probs.
func (g *decodeGraph) read(rows int) ([]token, error) {
	host := make([]int32, 2+2*g.rows)
	g.out.Int32s(host)
	if bad := host[0]; host[1] >= 0 && int(bad) < rows { // padding rows do not matter
		return nil, fmt.Errorf("sampling: %w", kernels.NonFiniteRow(int64(bad)))
	}
	return tokensOf(host[2:][:rows], host[2+g.rows:][:rows]), nil
}

func (e *executor) capture(s *torch.Scope, size int) (*decodeGraph, error) {
	g := &decodeGraph{rows: size, entries: size * e.groups, out: s.Keep(s.Zeros(torch.Int32, int64(2+2*size)))}
	padding, err := g.inputs(&batch{}, e.cache.PaddingPlace())
	if err != nil {
		return nil, err
	}
	g.in = s.Keep(s.FromInt32(padding, int64(len(padding))))
	if chosen := routes(s, &e.model.Config, size); chosen != nil {
		g.chosen = s.Keep(chosen)
	}
	var refused error
	g.graph, err = s.Capture(func() {
		g.logits.Drop()
		s.Scoped(func() { refused = cmp.Or(refused, e.decode(s, g)) })
	})
	if err = cmp.Or(err, refused); err != nil {
		g.drop()
		return nil, err
	}
	return g, nil
}

// decode launches the operations of a graph.
func (e *executor) decode(s *torch.Scope, g *decodeGraph) error {
	settings, rows, places, blocks := g.parts()
	e.cache.List(places, blocks)
	g.logits = s.Keep(e.head(e.hidden(s, rows, g.chosen)))
	n := int64(g.rows)
	bad, ids, logp := g.out.Narrow(0, 0, 2), g.out.Narrow(0, 2, n), g.out.Narrow(0, 2+n, n)
	bad.Fill_(-1)
	return kernels.EnqueueSample(model.Backend(s), logitsOf(g.logits), settings.Ptr(), ids.Ptr(), logp.Ptr(), bad.Ptr())
}

// dropGraphs frees all graphs. Sizes that could not be captured are not tried again.
func (e *executor) dropGraphs() {
	for size, g := range e.graphs {
		if g != nil {
			g.drop()
			delete(e.graphs, size)
		}
	}
}

func (g *decodeGraph) drop() {
	if g.graph != nil {
		g.graph.Drop()
	}
	for _, t := range []*torch.Tensor{g.in, g.out, g.logits, g.chosen} {
		t.Drop()
	}
}

// GraphSizes returns the numbers of rows whose decode passes are CUDA graphs, in ascending order. It waits for the
// current pass.
func (t *Tenant) GraphSizes(ctx context.Context) (sizes []int, err error) {
	err = t.engine.dev.Do(ctx, func(*torch.Scope) error {
		for size, g := range t.engine.executor.graphs {
			if g != nil {
				sizes = append(sizes, size)
			}
		}
		return nil
	})
	slices.Sort(sizes)
	return sizes, err
}
