package model

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// These tests check that no state of a convolution or of a gated delta rule passes from one
// sequence to another. docs/hybrids.md explains them.

// forEachHybrid runs a test with models that have an attention layer between layers with a state.
// Head and embedding are not tied, so the gradient of the embedding is the gradient of the inputs.
func forEachHybrid(t *testing.T, test func(t *testing.T, m *Model)) {
	for _, c := range []arch.Config{
		{Family: arch.LFM2, HeadDim: 12, ShortConv: &arch.ShortConv{Layers: []bool{true, true, false, true}, Width: 3, Bias: true}},
		{Family: arch.Qwen35, HeadDim: 16, Rope: arch.Rope{Dim: 4}, GatedDelta: &arch.GatedDelta{Layers: []bool{true, true, false, true}, KeyHeads: 2, ValueHeads: 4,
			KeyDim: 12, ValueDim: 10, Width: 4}},
	} {
		t.Run(c.Family, func(t *testing.T) { test(t, hybrid(t, c)) })
	}
}

func hybrid(t *testing.T, c arch.Config) *Model {
	t.Helper()
	ctx := context.Background()
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	c.VocabSize, c.Hidden, c.Layers, c.Heads, c.KVHeads, c.FFN, c.RMSEps, c.Rope.Theta, c.MaxPosition = 200, 48, 4, 4, 2, 64, 1e-5, 1e6, 128
	m, err := Random(ctx, dev, c, 7, Options{Compute: torch.Float32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(ctx) })
	return m
}

// segments has the rows of a packed batch. Segment b continues the sequence that ends at row follows[b]; -1 begins a sequence.
type segments struct {
	tokens  [][]int32
	follows []int32
}

func singleSegment(tokens ...int32) segments { return segments{[][]int32{tokens}, []int32{-1}} }

func (g segments) packed(s *torch.Scope) Packed {
	var ids, pos []int32
	cu := []int32{0}
	for b, tokens := range g.tokens {
		next := int32(0)
		if g.follows[b] >= 0 {
			next = pos[g.follows[b]] + 1
		}
		for i, id := range tokens {
			ids, pos = append(ids, id), append(pos, next+int32(i))
		}
		cu = append(cu, int32(len(ids)))
	}
	n, b := int64(len(ids)), int64(len(g.tokens))
	return Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32(cu, b+1), Follows: s.FromInt32(g.follows, b)}
}

// hiddenOf returns the hidden states of all rows, in order.
func (m *Model) hiddenOf(t *testing.T, g segments) (all []float64) {
	t.Helper()
	do(t, m, func(s *torch.Scope) { all = floats(m.Forward(s, g.packed(s))) })
	return all
}

// inputGradients returns the gradient of each token's embedding, for an objective whose
// gradient at a hidden state depends only on the token.
func (m *Model) inputGradients(t *testing.T, g segments) (of func(id int32) []float64) {
	t.Helper()
	width := m.Config.Hidden
	var flat []float64
	do(t, m, func(s *torch.Scope) {
		grad := s.Zeros(torch.Float32, m.Layout.Numel)
		for _, p := range All(m).Leaves() {
			p.Leaf.RequireGrad(true)
			p.Leaf.SetGrad(grad.Narrow(0, p.From, p.Leaf.Numel()).View(p.Leaf.Shape()...))
		}
		var dy []float32
		for _, id := range slices.Concat(g.tokens...) {
			rng := rand.New(rand.NewPCG(uint64(id), 1))
			for range width {
				dy = append(dy, float32(rng.NormFloat64()))
			}
		}
		m.ForwardBackward(s, g.packed(s), func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			return []*torch.Tensor{hidden}, []*torch.Tensor{s.FromFloat32(dy, int64(len(dy)/width), int64(width))}
		})
		flat = floats(grad)
	})
	return func(id int32) []float64 { return flat[int(id)*width:][:width] } // the embedding is the first leaf
}

func largestOf(values []float64) (most float64) {
	for _, v := range values {
		most = max(most, math.Abs(v))
	}
	return most
}

// span returns n consecutive tokens.
func span(first, n int32) (tokens []int32) {
	for i := range n {
		tokens = append(tokens, first+i)
	}
	return tokens
}

// TestPackedRowsAreRowsAlone: two adjacent rows have the same bits as each row alone.
func TestPackedRowsAreRowsAlone(t *testing.T) {
	forEachHybrid(t, func(t *testing.T, m *Model) {
		d := m.Config.Hidden
		a, b := span(0, 17), span(40, 24)
		both := m.hiddenOf(t, segments{[][]int32{a, b}, []int32{-1, -1}})
		if !slices.Equal(both[:len(a)*d], m.hiddenOf(t, singleSegment(a...))) || !slices.Equal(both[len(a)*d:], m.hiddenOf(t, singleSegment(b...))) {
			t.Error("a packed row differs from the row alone")
		}
	})
}

// TestForkedRowsAreRowsAlone: two sequences that share a beginning, which is computed once, have the same bits as each sequence alone.
func TestForkedRowsAreRowsAlone(t *testing.T) {
	forEachHybrid(t, func(t *testing.T, m *Model) {
		d := m.Config.Hidden
		prompt := span(0, 9)
		for _, at := range []int32{8, 7, 1, 0} { // the row at which both leave the prompt
			a, b := span(20, 1), span(40, 6)
			got := m.hiddenOf(t, segments{[][]int32{prompt, a, b}, []int32{-1, at, at}})
			for from, tokens := range map[int][]int32{len(prompt): a, len(prompt) + 1: b} {
				want := m.hiddenOf(t, singleSegment(slices.Concat(prompt[:at+1], tokens)...))
				if !slices.Equal(got[from*d:][:len(tokens)*d], want[int(at+1)*d:]) {
					t.Errorf("a sequence that leaves the prompt at row %d differs from the sequence alone", at)
				}
			}
		}
	})
}

// TestGradientsDoNotLeak: the gradient of a row's inputs has the same bits with a different
// neighbour, and nearly the same values without a neighbour.
func TestGradientsDoNotLeak(t *testing.T) {
	forEachHybrid(t, func(t *testing.T, m *Model) {
		a := span(0, 17)
		besideB := m.inputGradients(t, segments{[][]int32{a, span(40, 24)}, []int32{-1, -1}})
		besideC := m.inputGradients(t, segments{[][]int32{a, span(90, 24)}, []int32{-1, -1}})
		own := m.inputGradients(t, singleSegment(a...))
		for _, id := range a {
			if !slices.Equal(besideB(id), besideC(id)) {
				t.Errorf("the gradient of token %d depends on the neighbour", id)
			}
			// Products of more rows add in another order.
			near(t, "gradient with a neighbour", besideB(id), own(id), 1e-5*largestOf(own(id)))
		}
	})
}

// TestGradientsOfAForkAddUp: the gradient of a shared beginning is the sum of the gradients of
// its sequences, minus the prompt's own gradient from each.
func TestGradientsOfAForkAddUp(t *testing.T) {
	forEachHybrid(t, func(t *testing.T, m *Model) {
		prompt, a, b := span(0, 9), span(20, 5), span(40, 6)
		for _, at := range []int32{8, 5} {
			forked := m.inputGradients(t, segments{[][]int32{prompt, a, b}, []int32{-1, at, at}})
			withA := m.inputGradients(t, segments{[][]int32{prompt, a}, []int32{-1, at}})
			withB := m.inputGradients(t, segments{[][]int32{prompt, b}, []int32{-1, at}})
			own := m.inputGradients(t, singleSegment(prompt...))
			for _, id := range prompt {
				want := make([]float64, len(own(id)))
				for i := range want {
					want[i] = withA(id)[i] + withB(id)[i] - own(id)[i]
				}
				near(t, "gradient of a shared beginning", forked(id), want, 1e-5*largestOf(want))
			}
			for _, id := range slices.Concat(a, b) {
				only := withA
				if slices.Contains(b, id) {
					only = withB
				}
				near(t, "gradient after a fork", forked(id), only(id), 1e-5*largestOf(only(id)))
			}
		}
	})
}

// tree returns sequences that branch at different depths, as packed segments, and the tokens before
// each segment. Some segments are shorter than a convolution, so it reaches back over several segments.
func tree() (g segments, paths map[int][]int32) {
	prompt, a, b, c, d, e := span(0, 9), span(20, 1), span(30, 1), span(40, 6), span(60, 1), span(70, 4)
	g = segments{[][]int32{prompt, a, b, c, d, e}, []int32{-1, 8, 9, 10, 10, 3}}
	paths = map[int][]int32{1: prompt, 2: slices.Concat(prompt, a), 3: slices.Concat(prompt, a, b), 4: slices.Concat(prompt, a, b), 5: prompt[:4]}
	return g, paths
}

// TestTreeOfUnevenDepth: each segment of a tree has the same bits as alone, after the tokens before it.
func TestTreeOfUnevenDepth(t *testing.T) {
	forEachHybrid(t, func(t *testing.T, m *Model) {
		d := m.Config.Hidden
		g, paths := tree()
		got, row := m.hiddenOf(t, g), 0
		for b, tokens := range g.tokens {
			before := paths[b]
			want := m.hiddenOf(t, singleSegment(slices.Concat(before, tokens)...))
			if !slices.Equal(got[row*d:][:len(tokens)*d], want[len(before)*d:]) {
				t.Errorf("segment %d differs from the segment alone", b)
			}
			row += len(tokens)
		}
	})
}

// TestGradientsOfATree: the gradient of an input is the sum of the gradients of the segments,
// each computed alone after the tokens before it.
func TestGradientsOfATree(t *testing.T) {
	forEachHybrid(t, func(t *testing.T, m *Model) {
		g, paths := tree()
		got := m.inputGradients(t, g)
		want := map[int32][]float64{}
		for b, tokens := range g.tokens {
			with := m.inputGradients(t, singleSegment(slices.Concat(paths[b], tokens)...))
			without := func(int32) []float64 { return make([]float64, m.Config.Hidden) }
			if len(paths[b]) > 0 {
				without = m.inputGradients(t, singleSegment(paths[b]...))
			}
			for _, id := range slices.Concat(paths[b], tokens) {
				if want[id] == nil {
					want[id] = make([]float64, m.Config.Hidden)
				}
				for i := range want[id] {
					want[id][i] += with(id)[i] - without(id)[i]
				}
			}
		}
		for id, sum := range want {
			near(t, "gradient of a token", got(id), sum, 1e-5*largestOf(sum))
		}
	})
}
