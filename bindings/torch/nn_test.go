package torch

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels"
)

// layer is an operation with float inputs in[i] of shapes[i], and the oracle that computes its expected outputs.
type layer struct {
	name   string
	shapes [][]int64
	run    func(s *Scope, in []*Tensor) []*Tensor
	oracle func(in [][]float64) []float64 // returns the outputs one after the other
}

func one(t *Tensor) []*Tensor { return []*Tensor{t} }

func layers() []layer { return slices.Concat(rowLayers(), headsLayers(), attentionLayers()) }

// rowLayers returns the layers that compute each row alone.
func rowLayers() []layer {
	const tau, eps = 0.7, 1e-5
	ids, targets := []int32{2, 0, 2, 4, 1}, []int32{3, 0, 10, 10, 7}
	return []layer{
		{"linear", [][]int64{{5, 6}, {3, 6}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(Linear(in[0], in[1], nil)) },
			func(in [][]float64) []float64 { return linearOracle(in[0], in[1], nil, 6) }},
		{"linear with bias", [][]int64{{5, 6}, {3, 6}, {3}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(Linear(in[0], in[1], in[2])) },
			func(in [][]float64) []float64 { return linearOracle(in[0], in[1], in[2], 6) }},
		{"linear with a low-rank adapter", [][]int64{{5, 6}, {4, 6}, {24}},
			func(s *Scope, in []*Tensor) []*Tensor {
				values := in[2]
				if values.DType() == BFloat16 { // adapters of bf16 models are float32
					values = values.To(Float32)
				}
				return one(LoRAAdd_(Linear(in[0], in[1], nil), in[0], []LoRA{{values, loraParts}}, nil))
			},
			func(in [][]float64) []float64 { return loraOracle(in[0], in[1], in[2], 6, 4) }},
		{"embedding", [][]int64{{5, 4}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(Embedding(in[0], s.FromInt32(ids, 5))) },
			func(in [][]float64) []float64 {
				var y []float64
				for _, id := range ids {
					y = append(y, in[0][4*id:4*id+4]...)
				}
				return y
			}},
		{"rms norm", [][]int64{{4, 3, 8}, {8}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(RMSNorm(in[0], in[1], 0, eps)) },
			func(in [][]float64) []float64 { return rmsNormOracle(in[0], in[1], 0, eps) }},
		{"rms norm of weights from 1", [][]int64{{4, 3, 8}, {8}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(RMSNorm(in[0], in[1], 1, eps)) },
			func(in [][]float64) []float64 { return rmsNormOracle(in[0], in[1], 1, eps) }},
		{"add and rms norm", [][]int64{{4, 3, 8}, {4, 3, 8}, {8}},
			func(s *Scope, in []*Tensor) []*Tensor {
				sum, y := AddRMSNorm(in[0], in[1], in[2], 1, eps)
				return []*Tensor{sum, y}
			},
			func(in [][]float64) []float64 {
				sum := slices.Clone(in[0])
				for i := range sum {
					sum[i] += in[1][i]
				}
				return append(sum, rmsNormOracle(sum, in[2], 1, eps)...)
			}},
		{"swiglu", [][]int64{{5, 14}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(SwiGLU(in[0])) },
			func(in [][]float64) []float64 { return gluOracle(in[0], 7, silu) }},
		{"gelu", [][]int64{{5, 7}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(in[0].GELU()) },
			func(in [][]float64) []float64 {
				y := slices.Clone(in[0])
				for i, x := range y {
					y[i] = geluTanh(x)
				}
				return y
			}},
		{"geglu", [][]int64{{5, 14}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(GeGLU(in[0])) },
			func(in [][]float64) []float64 { return gluOracle(in[0], 7, geluTanh) }},
		{"clamped glu", [][]int64{{5, 14}},
			func(s *Scope, in []*Tensor) []*Tensor { return one(ClampedGLU(in[0].Scale(5))) },
			func(in [][]float64) []float64 {
				wide := slices.Clone(in[0])
				for i := range wide {
					wide[i] *= 5
				}
				return clampedGLUOracle(wide, 7)
			}},
		experts("experts", false), experts("experts, weights normalised", true),
		sigmoidWeights("sigmoid weights", false), sigmoidWeights("sigmoid weights, normalised", true), expertsWithBiases(ClampedGates, clampedGLUOracle),
		expertsWithBiases(GeGLUGates, func(x []float64, f int) []float64 { return gluOracle(x, f, geluTanh) }),
		{"head log prob", [][]int64{{5, 6}, {11, 6}},
			func(s *Scope, in []*Tensor) []*Tensor {
				logp, entropy := HeadLogProb(in[0], in[1], s.FromInt32(targets, 5), tau, 2)
				return []*Tensor{logp, entropy}
			},
			func(in [][]float64) []float64 { return headOracle(in[0], in[1], targets, 6, tau, 0) }},
		{"capped head log prob", [][]int64{{5, 6}, {11, 6}},
			func(s *Scope, in []*Tensor) []*Tensor {
				logp, entropy := HeadLogProb(in[0], CappedHead{in[1], 1.5}, s.FromInt32(targets, 5), tau, 2)
				return []*Tensor{logp, entropy}
			},
			func(in [][]float64) []float64 { return headOracle(in[0], in[1], targets, 6, tau, 1.5) }},
	}
}

// headsLayers returns the layers that divide rows into heads and turn them by their positions.
func headsLayers() []layer {
	const eps = 1e-5
	pos := []int32{0, 1, 6, 3, 3}
	cos, sin := make([]float64, 7*4), make([]float64, 7*4)
	for i := range cos {
		angle := float64(i/4) / math.Pow(100, float64(i%4)/4)
		cos[i], sin[i] = float64(float32(math.Cos(angle))), float64(float32(math.Sin(angle)))
	}
	growth := []float64{1, 1.5, 1, 2, 1, 1, 0.5} // of queries, by position
	splitBy := func(s *Scope, in []*Tensor, how Heads) []*Tensor {
		how.Cos, how.Sin, how.Pos = from(s, cos, Float32, 7, 4), from(s, sin, Float32, 7, 4), s.FromInt32(pos, 5)
		if len(in) == 3 {
			how.QNorm, how.KNorm = in[1], in[2]
		}
		q, k, v := how.Split(in[0])
		return []*Tensor{q, k, v}
	}
	return []layer{
		{"heads", [][]int64{{5, 32}},
			func(s *Scope, in []*Tensor) []*Tensor { return splitBy(s, in, Heads{Heads: 2, KVHeads: 1}) },
			func(in [][]float64) []float64 { return headsOracle(in, cos, sin, pos, 8, 0) }},
		{"heads that turn in part", [][]int64{{5, 44}},
			func(s *Scope, in []*Tensor) []*Tensor { return splitBy(s, in, Heads{Heads: 2, KVHeads: 1}) },
			func(in [][]float64) []float64 { return headsOracle(in, cos, sin, pos, 11, 0) }},
		{"normalised heads", [][]int64{{5, 32}, {8}, {8}},
			func(s *Scope, in []*Tensor) []*Tensor { return splitBy(s, in, Heads{Heads: 2, KVHeads: 1, Eps: eps}) },
			func(in [][]float64) []float64 { return headsOracle(in, cos, sin, pos, 8, 0) }},
		{"heads normalised together by weights from 1", [][]int64{{5, 32}, {16}, {8}},
			func(s *Scope, in []*Tensor) []*Tensor {
				return splitBy(s, in, Heads{Heads: 2, KVHeads: 1, Offset: 1, Eps: eps})
			},
			func(in [][]float64) []float64 { return headsOracle(in, cos, sin, pos, 8, 1) }},
		{"heads in another order, normalised after they turn, queries that grow", [][]int64{{5, 32}, {8}, {8}},
			func(s *Scope, in []*Tensor) []*Tensor {
				order := make([]int32, 32)
				for i := range order {
					order[i] = int32(i/8*8 + 7 - i%8)
				}
				return splitBy(s, in, Heads{Heads: 2, KVHeads: 1, Eps: eps, NormsLast: true, Order: s.FromInt32(order, 32), Growth: from(s, growth, Float32, 7)})
			},
			func(in [][]float64) []float64 { return lateHeadsOracle(in, cos, sin, growth, pos) }},
	}
}

// attentionLayers returns attention in sequences, one empty and one with a single row, and in a tree.
func attentionLayers() []layer {
	const scale = 0.5
	cu := []int32{0, 3, 3, 4, 9}
	tree, follows := []int32{0, 2, 4, 4, 7, 8, 9}, []int32{-1, 0, 1, 3, -1, 7}
	attention := func(name string, cu, follows []int32, window int, sinks bool) layer {
		shapes := [][]int64{{9, 4, 8}, {9, 2, 8}, {9, 2, 8}}
		if sinks {
			shapes = append(shapes, []int64{4})
		}
		return layer{name, shapes, // append(in, nil)[3] is the sinks, or nil
			func(s *Scope, in []*Tensor) []*Tensor {
				var before *Tensor
				if follows != nil {
					before = s.FromInt32(follows, int64(len(follows)))
				}
				return one(AttentionPacked(in[0], in[1], in[2], s.FromInt32(cu, int64(len(cu))), before, scale, window, append(in, nil)[3]))
			},
			func(in [][]float64) []float64 {
				return attentionOracle(in[0], in[1], in[2], cu, follows, 4, 2, 8, scale, window, append(in, nil)[3])
			}}
	}
	return []layer{
		attention("attention", cu, nil, 0, false),
		attention("attention with shared beginnings", tree, follows, 0, false),
		attention("attention in a window with shared beginnings", tree, follows, 3, false),
		attention("attention with sinks", cu, nil, 0, true),
		attention("attention with sinks in a window with shared beginnings", tree, follows, 3, true),
	}
}

func inputs(l layer) [][]float64 {
	in := make([][]float64, len(l.shapes))
	for i, shape := range l.shapes {
		in[i] = values(uint64(100+i), product(shape))
	}
	return in
}

func tensors(s *Scope, l layer, in [][]float64, dt DType) []*Tensor {
	ts := make([]*Tensor, len(in))
	for i := range in {
		ts[i] = from(s, in[i], dt, l.shapes[i]...)
	}
	return ts
}

func joined(outs []*Tensor) []float64 {
	var v []float64
	for _, out := range outs {
		v = append(v, float64s(out)...)
	}
	return v
}

// On a CPU float32 uses our kernels; float64 and bfloat16 use LibTorch's operators, as on every
// other device. The weights of experts are always float32.
var precisions = []struct {
	dt                DType
	forward, backward float64
}{{Float32, 1e-5, 5e-5}, {Float64, 5e-7, 1e-6}, {BFloat16, 5e-2, 1e-1}}

// Outputs match the oracle, and gradients of sum(g * outputs) match its central differences. Gradients are compared once as
// autograd creates them, and once added to existing ones.
func TestLayersMatchOracles(t *testing.T) { onDevices(t, testLayersMatchOracles) }

func testLayersMatchOracles(t *testing.T, d *Device) {
	for _, l := range layers() {
		for _, p := range precisions {
			t.Run(l.name+"/"+p.dt.String(), func(t *testing.T) {
				in := inputs(l)
				outputs := l.oracle(in)
				g := values(7, int64(len(outputs)))
				want := make([][]float64, len(in))
				for i := range in {
					want[i] = differences(l.oracle, in, i, g)
				}
				do(t, d, func(s *Scope) {
					ts := tensors(s, l, in, p.dt)
					wantClose(t, "no grad", joined(l.run(s, ts)), outputs, p.forward)
					s.Grad(true, func() { wantClose(t, "grad mode", joined(l.run(s, ts)), outputs, p.forward) })
					for _, x := range ts {
						x.RequireGrad(true)
					}
					backward(s, l, ts, g)
					for i, x := range ts {
						wantClose(t, "gradient", float64s(x.Grad()), want[i], p.backward)
						x.SetGrad(s.Full(p.dt, 3, x.Shape()...))
					}
					buffer := ts[0].Grad().Ptr()
					backward(s, l, ts, g)
					for i, x := range ts {
						added := x.Grad().Add(s.Full(p.dt, -3, 1))
						wantClose(t, "gradient added", float64s(added), want[i], p.backward)
					}
					if ts[0].Grad().Ptr() != buffer {
						t.Error("the gradient moved")
					}
				})
			})
		}
	}
}

// backward runs l on ts, and then backward from the output gradients g, which follow one another.
func backward(s *Scope, l layer, ts []*Tensor, g []float64) {
	s.Grad(true, func() {
		outs := l.run(s, ts)
		var grads []*Tensor
		for _, out := range outs {
			n := out.Numel()
			grads = append(grads, from(s, g[:n], out.DType(), out.Shape()...))
			g = g[n:]
		}
		Backward(outs, grads)
	})
}

func differences(f func([][]float64) []float64, in [][]float64, which int, g []float64) []float64 {
	const h = 1e-5
	loss := func() float64 {
		sum := 0.0
		for i, y := range f(in) {
			sum += g[i] * y
		}
		return sum
	}
	out := make([]float64, len(in[which]))
	for i, x := range in[which] {
		in[which][i] = x + h
		up := loss()
		in[which][i] = x - h
		out[i] = (up - loss()) / (2 * h)
		in[which][i] = x
	}
	return out
}

// AddRMSNorm makes one pass over memory instead of two, with the same bits on every device.
func TestAddRMSNormIsBothSteps(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		const rows, width = 37, 130
		for _, dt := range []DType{Float32, BFloat16} {
			do(t, d, func(s *Scope) {
				x, r, w := from(s, values(1, rows*width), dt, rows, width), from(s, values(2, rows*width), dt, rows, width), from(s, values(3, width), dt, width)
				sum, y := AddRMSNorm(x, r, w, 0, 1e-5)
				if want := x.Add(r); !sum.Equal(want) || !y.Equal(RMSNorm(want, w, 0, 1e-5)) {
					t.Errorf("%s: the sum or its norm differs", dt)
				}
			})
		}
	})
}

// If only one input requires a gradient, only that one gets a gradient.
func TestHeadLogProbPartialGradients(t *testing.T) {
	d := open(t)
	do(t, d, func(s *Scope) {
		h, w := from(s, values(1, 12), Float32, 3, 4), from(s, values(2, 20), Float32, 5, 4)
		targets := s.FromInt32([]int32{1, 4, 0}, 3)
		w.RequireGrad(true)
		s.Grad(true, func() {
			logp, _ := HeadLogProb(h, w, targets, 1, 2)
			Backward([]*Tensor{logp.Sum()}, []*Tensor{nil})
		})
		if h.Grad() != nil || w.Grad() == nil {
			t.Fatal("want a gradient of w and no gradient of h")
		}
	})
}

func TestRowsDoNotDependOnTheBatch(t *testing.T) {
	d := open(t)
	const rows, k, n = 37, 96, 130
	x, w, b := values(1, rows*k), values(2, n*k), values(3, n)
	targets := make([]int32, rows)
	do(t, d, func(s *Scope) {
		X, W, B := from(s, x, Float32, rows, k), from(s, w, Float32, n, k), from(s, b, Float32, n)
		Y := s.FromInt32(targets, rows)
		all := float64s(Linear(X, W, B))
		logp, entropy := HeadLogProb(X, W, Y, 1, 8)
		for _, part := range [][2]int64{{0, 1}, {5, 1}, {36, 1}, {3, 4}, {8, 16}, {1, 36}} {
			from, length := part[0], part[1]
			y := Linear(X.Narrow(0, from, length), W, B)
			if !slices.Equal(float64s(y), all[from*n:(from+length)*n]) {
				t.Fatalf("linear: rows %d to %d differ from the same rows in the whole batch", from, from+length)
			}
			lp, e := HeadLogProb(X.Narrow(0, from, length), W, Y.Narrow(0, from, length), 1, 5)
			if !lp.Equal(logp.Narrow(0, from, length)) || !e.Equal(entropy.Narrow(0, from, length)) {
				t.Fatalf("head: rows %d to %d differ from the same rows in the whole batch", from, from+length)
			}
		}
	})
}

func TestCachedAttentionMatchesPacked(t *testing.T) { onDevices(t, testCachedAttentionMatchesPacked) }

func testCachedAttentionMatchesPacked(t *testing.T, d *Device) {
	for _, window := range []int{0, 1, 3, 100} {
		cachedAttentionMatchesPacked(t, d, window, nil)
	}
	cachedAttentionMatchesPacked(t, d, 3, []float64{0.5, -1, 2, 0})
	cachedAttentionMatchesPacked(t, d, 0, []float64{-3, 1, 0, 4})
}

func cachedAttentionMatchesPacked(t *testing.T, d *Device, window int, terms []float64) {
	const T, heads, kv, hd, blocks, block = 9, 4, 2, 8, 7, 2
	q, k, v := values(1, T*heads*hd), values(2, T*kv*hd), values(3, T*kv*hd)
	cu, sequence, table := []int32{0, 4, 9}, []int32{2, 2, 2, 2, 0, 0, 0, 0, 0}, []int32{5, 0, 3, -1, -1, -1, 2, 6, -1}
	pos, lengths := []int32{0, 1, 2, 3, 0, 1, 2, 3, 4}, []int32{1, 2, 3, 4, 1, 2, 3, 4, 5}
	var product []float64
	for r := range T {
		product = slices.Concat(product, q[r*heads*hd:(r+1)*heads*hd], k[r*kv*hd:(r+1)*kv*hd], v[r*kv*hd:(r+1)*kv*hd])
	}
	want := attentionOracle(q, k, v, cu, nil, heads, kv, hd, 0.5, window, terms)
	for _, p := range precisions {
		do(t, d, func(s *Scope) {
			Q, K, V := from(s, q, p.dt, T, heads, hd), from(s, k, p.dt, T, kv, hd), from(s, v, p.dt, T, kv, hd)
			kc, vc := s.Full(p.dt, math.NaN(), blocks, kv, block, hd), s.Full(p.dt, math.NaN(), blocks, kv, block, hd)
			kc.Zero_() // positions after a length may hold any finite number
			vc.Zero_()
			S, P, L, table := s.FromInt32(sequence, T), s.FromInt32(pos, T), s.FromInt32(lengths, T), s.FromInt32(table, 3, 3)
			how := Heads{Heads: heads, KVHeads: kv, Pos: P}
			if !how.Cache(from(s, product, p.dt, T, (heads+2*kv)*hd), kc, vc, table, S).Equal(Q) {
				t.Error("the queries changed")
			}
			var sinks *Tensor
			if terms != nil {
				sinks = from(s, terms, p.dt, heads)
			}
			out := AttentionCached(Q, kc, vc, table, S, L, 0.5, window, sinks)
			wantClose(t, p.dt.String(), float64s(out), want, p.forward)
			promised := p.dt == Float32 && !d.IsCUDA() // bitwise equality is promised only for float32 on a CPU
			if promised && !out.Equal(AttentionPacked(Q, K, V, s.FromInt32(cu, 3), nil, 0.5, window, sinks)) {
				t.Error("cached and packed attention differ in bits")
			}
			for r := range int64(T) { // a GPU processes a prompt differently from a single row
				alone := AttentionCached(Q.Narrow(0, r, 1), kc, vc, table, S.Narrow(0, r, 1), L.Narrow(0, r, 1), 0.5, window, sinks)
				wantClose(t, "a row of "+p.dt.String(), float64s(alone), want[r*heads*hd:(r+1)*heads*hd], p.forward)
				if promised && !alone.Equal(out.Narrow(0, r, 1)) {
					t.Errorf("row %d alone differs from the row in its batch", r)
				}
			}
		})
	}
}

// LibTorch computes attention of many rows after a common prefix in pieces. The results, forward and backward, match our kernel's.
func TestPackedAttentionOfManyRows(t *testing.T) {
	d := open(t)
	const first, rest, hd = 3000, 3500, 4
	const T = first + rest
	for _, window := range []int{0, 700} {
		gradients := map[DType][][]float64{}
		for _, dt := range []DType{Float32, Float64} {
			do(t, d, func(s *Scope) {
				leaves := []*Tensor{from(s, values(1, T*hd), dt, T, 1, hd), from(s, values(2, T*hd), dt, T, 1, hd), from(s, values(3, T*hd), dt, T, 1, hd), from(s, []float64{2}, dt, 1)}
				for _, x := range leaves {
					x.RequireGrad(true)
				}
				var out *Tensor
				s.Grad(true, func() {
					out = AttentionPacked(leaves[0], leaves[1], leaves[2], s.FromInt32([]int32{0, first, T}, 3), s.FromInt32([]int32{-1, first - 1}, 2), 0.5, window, leaves[3])
				})
				Backward([]*Tensor{out}, []*Tensor{from(s, values(4, T*hd), dt, T, 1, hd)})
				gradients[dt] = [][]float64{float64s(out.Detach())}
				for _, x := range leaves {
					gradients[dt] = append(gradients[dt], float64s(x.Grad()))
				}
			})
		}
		for i, want := range gradients[Float64] {
			wantClose(t, fmt.Sprintf("window %d, result %d", window, i), gradients[Float32][i], want, 2e-4)
		}
	}
}

// The keys and values of a prompt are gathered from their blocks once. A copy for each row would be 256 times as large.
func TestCachedAttentionOfAPromptGathersOnce(t *testing.T) {
	d := open(t)
	const rows, length, hd = 256, 2048, 32
	const block = 64
	sequence, lengths, table := make([]int32, rows), make([]int32, rows), make([]int32, length/block)
	for i := range table {
		table[i] = int32(len(table) - 1 - i)
	}
	for r := range lengths {
		lengths[r] = int32(length - rows + 1 + r)
	}
	peak := func() int64 {
		m, err := d.Memory(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return m.Peak
	}
	var q, cache *Tensor
	do(t, d, func(s *Scope) {
		q, cache = s.Keep(s.Zeros(BFloat16, rows, 2, hd)), s.Keep(s.Zeros(BFloat16, length/block, 1, block, hd))
	})
	before := peak()
	do(t, d, func(s *Scope) {
		AttentionCached(q, cache, cache, s.FromInt32(table, 1, length/block), s.FromInt32(sequence, rows), s.FromInt32(lengths, rows), 1, 0, nil)
	})
	if grown := peak() - before; grown > 8<<20 {
		t.Errorf("attention of %d rows to one sequence of %d KB took %d MB", rows, length*hd*2>>10, grown>>20)
	}
}

func TestLayerErrors(t *testing.T) {
	d := open(t)
	toCache := func(s *Scope, table *Tensor, sequence, pos int32) {
		Heads{Heads: 1, KVHeads: 1, Pos: s.FromInt32([]int32{pos}, 1)}.Cache(s.Zeros(Float32, 1, 12), s.Zeros(Float32, 2, 1, 4, 4), s.Zeros(Float32, 2, 1, 4, 4),
			table, s.FromInt32([]int32{sequence}, 1))
	}
	for _, c := range []struct {
		name, want string
		run        func(s *Scope)
	}{
		{"linear", "do not agree on K", func(s *Scope) { Linear(s.Zeros(Float32, 2, 3), s.Zeros(Float32, 4, 2), nil) }},
		{"linear bias", "do not agree on N", func(s *Scope) { Linear(s.Zeros(Float32, 2, 3), s.Zeros(Float32, 4, 3), s.Zeros(Float32, 3)) }},
		{"embedding", "out of range", func(s *Scope) { Embedding(s.Zeros(Float32, 2, 3), s.FromInt32([]int32{2}, 1)) }},
		{"rms norm", "do not agree on D", func(s *Scope) { RMSNorm(s.Zeros(Float32, 2, 3), s.Zeros(Float32, 4), 0, 1e-5) }},
		{"swiglu", "even", func(s *Scope) { SwiGLU(s.Zeros(Float32, 2, 3)) }},
		{"heads position", "position", func(s *Scope) {
			Heads{Heads: 1, KVHeads: 1, Cos: s.Zeros(Float32, 3, 2), Sin: s.Zeros(Float32, 3, 2), Pos: s.FromInt32([]int32{3}, 1)}.Split(s.Zeros(Float32, 1, 12))
		}},
		{"heads dtype", "must be int32 [1]", func(s *Scope) {
			Heads{Heads: 1, KVHeads: 1, Pos: s.FromInt64([]int64{0}, 1)}.Split(s.Zeros(Float32, 1, 12))
		}},
		{"heads tables", "cos and sin must be float32 [P, 2 at most]", func(s *Scope) {
			Heads{Heads: 1, KVHeads: 1, Cos: s.Zeros(Float32, 3, 3), Sin: s.Zeros(Float32, 3, 3), Pos: s.Zeros(Int32, 1)}.Split(s.Zeros(Float32, 1, 12))
		}},
		{"heads of a product", "qkv must be [T, (H + 2 KV) hd] of 4 heads", func(s *Scope) {
			Heads{Heads: 2, KVHeads: 1, Pos: s.Zeros(Int32, 1)}.Split(s.Zeros(Float32, 1, 10))
		}},
		{"heads in groups", "multiple of those of keys", func(s *Scope) {
			Heads{Heads: 3, KVHeads: 2, Pos: s.Zeros(Int32, 1)}.Split(s.Zeros(Float32, 1, 14))
		}},
		{"heads' norms", "norms of heads must be [4], or of all of them together [8] and [4]", func(s *Scope) {
			Heads{Heads: 2, KVHeads: 1, QNorm: s.Zeros(Float32, 8), KNorm: s.Zeros(Float32, 8), Pos: s.Zeros(Int32, 1)}.Split(s.Zeros(Float32, 1, 16))
		}},
		{"heads' norms of another dtype", "together [4] and [4], Float and on cpu", func(s *Scope) {
			norm := s.Zeros(Float32, 4).To(BFloat16)
			Heads{Heads: 1, KVHeads: 1, QNorm: norm, KNorm: norm, Pos: s.Zeros(Int32, 1)}.Split(s.Zeros(Float32, 1, 12))
		}},
		{"attention offsets", "cu must rise from 0", func(s *Scope) {
			x := s.Zeros(Float32, 4, 2, 8)
			AttentionPacked(x, x, x, s.FromInt32([]int32{0, 3, 2, 4}, 4), nil, 1, 0, nil)
		}},
		{"attention end", "number of rows, 4", func(s *Scope) {
			x := s.Zeros(Float32, 4, 2, 8)
			AttentionPacked(x, x, x, s.FromInt32([]int32{0, 5}, 2), nil, 1, 0, nil)
		}},
		{"attention groups", "multiple of KV", func(s *Scope) {
			x := s.Zeros(Float32, 4, 2, 8)
			AttentionPacked(s.Zeros(Float32, 4, 3, 8), x, x, s.FromInt32([]int32{0, 4}, 2), nil, 1, 0, nil)
		}},
		{"attention follows", "segment 1 must follow a row before its first, 2, got 2", func(s *Scope) {
			x := s.Zeros(Float32, 4, 2, 8)
			AttentionPacked(x, x, x, s.FromInt32([]int32{0, 2, 4}, 3), s.FromInt32([]int32{-1, 2}, 2), 1, 0, nil)
		}},
		{"attention follows length", "follows must be int32 [2]", func(s *Scope) {
			x := s.Zeros(Float32, 4, 2, 8)
			AttentionPacked(x, x, x, s.FromInt32([]int32{0, 2, 4}, 3), s.FromInt32([]int32{-1}, 1), 1, 0, nil)
		}},
		{"cache sequence", "inside the cache", func(s *Scope) { toCache(s, s.Zeros(Int32, 2, 1), 2, 0) }},
		{"cache position", "inside the cache", func(s *Scope) { toCache(s, s.Zeros(Int32, 2, 1), 0, -1) }},
		{"cache block", "inside the cache", func(s *Scope) { toCache(s, s.FromInt32([]int32{2}, 1, 1), 0, 0) }},
		{"cache table", "the table must be int32 [S, W]", func(s *Scope) { toCache(s, s.Zeros(Int32, 2), 0, 0) }},
		{"cached length", "inside the cache", func(s *Scope) {
			c := s.Zeros(Float32, 2, 1, 4, 4)
			AttentionCached(s.Zeros(Float32, 1, 1, 4), c, c, s.Zeros(Int32, 2, 1), s.FromInt32([]int32{0}, 1), s.FromInt32([]int32{5}, 1), 1, 0, nil)
		}},
		{"head target", "row 4: invalid argument; is its target", func(s *Scope) {
			HeadLogProb(s.Zeros(Float32, 5, 3), s.Zeros(Float32, 4, 3), s.FromInt32([]int32{0, 1, 2, 3, 4}, 5), 1, 2)
		}},
		{"head logits", "row 0: non-finite", func(s *Scope) {
			HeadLogProb(s.Full(Float32, math.Inf(1), 1, 3), s.Full(Float32, 1, 4, 3), s.FromInt32([]int32{0}, 1), 1, 2)
		}},
		{"head temperature", "tau", func(s *Scope) {
			HeadLogProb(s.Zeros(Float32, 1, 3), s.Zeros(Float32, 4, 3), s.FromInt32([]int32{0}, 1), 0, 2)
		}},
	} {
		t.Run(c.name, func(t *testing.T) { wantMessage(t, failure(t, d, c.run), c.want) })
	}
}

// TestErrorsCarryTheKernelsStatus checks that errors have the status of the kernel, and status
// 0 if no kernel made them, regardless of their text.
func TestErrorsCarryTheKernelsStatus(t *testing.T) {
	d := open(t)
	for _, c := range []struct {
		name string
		want kernels.Status
		run  func(s *Scope)
	}{
		{"logits", kernels.NonFinite, func(s *Scope) {
			HeadLogProb(s.Full(Float32, math.Inf(1), 1, 3), s.Full(Float32, 1, 4, 3), s.FromInt32([]int32{0}, 1), 1, 2)
		}},
		{"logits, recorded for the backward pass", kernels.NonFinite, func(s *Scope) {
			w := s.Full(Float32, 1, 4, 3)
			w.RequireGrad(true)
			HeadLogProb(s.Full(Float32, math.Inf(1), 1, 3), w, s.FromInt32([]int32{0}, 1), 1, 2)
		}},
		{"target", kernels.InvalidArgument, func(s *Scope) {
			HeadLogProb(s.Zeros(Float32, 1, 3), s.Zeros(Float32, 4, 3), s.FromInt32([]int32{4}, 1), 1, 2)
		}},
		{"shapes", 0, func(s *Scope) {
			HeadLogProb(s.Zeros(Float32, 1, 3), s.Zeros(Float32, 4, 2), s.FromInt32([]int32{4}, 1), 1, 2)
		}},
		{"a message alone", 0, func(*Scope) { fail("matmul", kernels.NonFinite.String()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e := failure(t, d, c.run); e.Status != c.want {
				t.Errorf("%v: status %d, want %d", e, e.Status, c.want)
			}
		})
	}
}

// The gradient of a row that many segments see loses no terms, and is the same each time. Each
// segment adds 0.5. A BFloat16 sum near 150 would lose every second term.
func TestGradientOfASharedRow(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		const answers = 300
		cu, follows := []int32{0, 1}, []int32{-1}
		for i := range answers {
			cu, follows = append(cu, int32(i+2)), append(follows, 0)
		}
		gradient := func() (first float64, all []float64) {
			do(t, d, func(s *Scope) {
				q, k, v := s.Zeros(BFloat16, answers+1, 1, 8), s.Zeros(BFloat16, answers+1, 1, 8), s.Zeros(BFloat16, answers+1, 1, 8)
				v.RequireGrad(true)
				s.Grad(true, func() {
					out := AttentionPacked(q, k, v, s.FromInt32(cu, int64(len(cu))), s.FromInt32(follows, int64(len(follows))), 1, 0, nil)
					Backward([]*Tensor{out}, []*Tensor{s.Full(BFloat16, 1, answers+1, 1, 8)})
				})
				all = float64s(v.Grad())
			})
			return all[0], all
		}
		first, all := gradient()
		if first != 1+answers/2 || all[8] != 0.5 {
			t.Errorf("gradient %v of the shared row, %v of the next; want %v and 0.5", first, all[8], 1+answers/2)
		}
		if _, again := gradient(); !slices.Equal(all, again) {
			t.Error("the gradient differs the second time")
		}
	})
}
