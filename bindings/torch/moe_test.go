package torch

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// experts returns a mixture of 4 experts of 3 units, 2 per token. The choice is fixed: expert 2 has one token, expert 3 has none.
func experts(name string, normalise bool) layer {
	const tokens, hidden, width, n, k = 5, 6, 3, 4, 2
	given := []int32{0, 1, 1, 0, 2, 1, 1, 0, 0, 1}
	return layer{name, [][]int64{{tokens, hidden}, {tokens, n}, {n * 2 * width, hidden}, {n * hidden, width}},
		func(s *Scope, in []*Tensor) []*Tensor {
			logits := in[1].To(Float32) // logits are float32 in models, regardless of the type of the weights
			chosen, weight := Route(logits, Routing{PerToken: k, Normalise: normalise, Given: s.FromInt32(given, tokens, k)})
			return one(Experts(in[0], chosen, weight, MLPs{GateUp: in[2], Down: in[3]}))
		},
		func(in [][]float64) []float64 {
			y := make([]float64, tokens*hidden)
			for t := range tokens {
				x, p := in[0][t*hidden:][:hidden], softmaxOf(in[1][t*n:][:n])
				sum := 1.0
				if normalise {
					sum = p[given[t*k]] + p[given[t*k+1]]
				}
				for _, e := range given[t*k:][:k] {
					gates := in[2][int(e)*2*width*hidden:][:2*width*hidden]
					out := linearOracle(gluOracle(linearOracle(x, gates, nil, hidden), width, silu), in[3][int(e)*hidden*width:][:hidden*width], nil, width)
					for i, v := range out {
						y[t*hidden+i] += p[e] / sum * v
					}
				}
			}
			return y
		}}
}

// expertsWithBiases returns experts with these gates, and with biases in both products.
func expertsWithBiases(gates Gates, oracle func(gateUp []float64, width int) []float64) layer {
	const tokens, hidden, width, n, k = 5, 6, 3, 4, 2
	given := []int32{0, 1, 1, 0, 2, 1, 1, 0, 0, 1}
	return layer{fmt.Sprint("experts with biases and gates ", gates), [][]int64{{tokens, hidden}, {tokens, n}, {n * 2 * width, hidden}, {n * hidden, width}, {n * 2 * width}, {n * hidden}},
		func(s *Scope, in []*Tensor) []*Tensor {
			chosen, weight := Route(in[1].To(Float32), Routing{PerToken: k, Normalise: true, Given: s.FromInt32(given, tokens, k)})
			y := Experts(in[0], chosen, weight, MLPs{GateUp: in[2], Down: in[3], GateUpBias: in[4], DownBias: in[5], Gates: gates})
			return one(y.Scale(0.25)) // weights of experts are float32, regardless of the other types
		},
		func(in [][]float64) []float64 {
			y := make([]float64, tokens*hidden)
			for t := range tokens {
				x, p := in[0][t*hidden:][:hidden], softmaxOf(in[1][t*n:][:n])
				sum := p[given[t*k]] + p[given[t*k+1]]
				for _, chosen := range given[t*k:][:k] {
					e := int(chosen)
					gateUp := linearOracle(x, in[2][e*2*width*hidden:][:2*width*hidden], in[4][e*2*width:][:2*width], hidden)
					for i, v := range linearOracle(oracle(gateUp, width), in[3][e*hidden*width:][:hidden*width], in[5][e*hidden:][:hidden], width) {
						y[t*hidden+i] += p[e] / sum * v / 4
					}
				}
			}
			return y
		}}
}

// sigmoidWeights computes the weights of 3 of 5 experts for 4 tokens. The choice is fixed.
func sigmoidWeights(name string, normalise bool) layer {
	const tokens, n, k, scale = 4, 5, 3, 1.5
	given := []int32{0, 1, 4, 4, 3, 2, 2, 0, 1, 3, 4, 0}
	return layer{name, [][]int64{{tokens, n}},
		func(s *Scope, in []*Tensor) []*Tensor {
			return one(SigmoidWeights(in[0].To(Float32), s.FromInt32(given, tokens, k), normalise, scale))
		},
		func(in [][]float64) (weights []float64) {
			for t := range tokens {
				row, sum := make([]float64, k), 0.0
				for j, e := range given[t*k:][:k] {
					row[j] = 1 / (1 + math.Exp(-in[0][t*n+int(e)]))
					sum += row[j]
				}
				for _, w := range row {
					if normalise {
						w /= sum + 1e-6
					}
					weights = append(weights, scale*w)
				}
			}
			return weights
		}}
}

// TestSigmoidWeightsOfARow checks that without gradients the weights of a row have the same
// bits in any batch, and that a nonexistent expert is refused.
func TestSigmoidWeightsOfARow(t *testing.T) {
	const tokens, n, k = 37, 5, 3
	dev := open(t)
	do(t, dev, func(s *Scope) {
		logits := from(s, values(1, tokens*n), Float32, tokens, n)
		chosen := make([]int32, tokens*k)
		for i := range chosen {
			chosen[i] = int32(i % n)
		}
		all := float64s(SigmoidWeights(logits, s.FromInt32(chosen, tokens, k), true, 1))
		for row := range int64(tokens) {
			alone := float64s(SigmoidWeights(logits.Narrow(0, row, 1), s.FromInt32(chosen[row*k:][:k], 1, k), true, 1))
			if !slices.Equal(alone, all[row*k:][:k]) {
				t.Errorf("row %d has the weights %v alone, but %v among others", row, alone, all[row*k:][:k])
			}
		}
	})
	chosen := []int32{0, 1, n}
	err := dev.Do(context.Background(), func(s *Scope) error {
		SigmoidWeights(s.Zeros(Float32, 1, n), s.FromInt32(chosen, 1, k), true, 1)
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "expert 5 of 5") {
		t.Errorf("nonexistent expert: %v", err)
	}
}

func softmaxOf(logits []float64) []float64 {
	p, sum := make([]float64, len(logits)), 0.0
	for _, z := range logits {
		sum += math.Exp(z)
	}
	for i, z := range logits {
		p[i] = math.Exp(z) / sum
	}
	return p
}

// The load-balancing loss is c·E·Σ load·mean probability. Route adds its gradient to the gradient of the weights, which is 0 here.
func TestBalance(t *testing.T) {
	const tokens, n, k, c = 3, 4, 2, 0.7
	logits := []float64{1, 2, -1, 0.5, 0.25, 0, 3, 2, -2, 1.5, 1, 0}
	loads := []float64{1. / 6, 2. / 6, 2. / 6, 1. / 6} // the two largest of each row: 1 and 0, 2 and 3, 1 and 2
	loss := func(in [][]float64) []float64 {
		all := 0.0
		for r := range tokens {
			for e, p := range softmaxOf(in[0][r*n:][:n]) {
				all += c * n * loads[e] * p / tokens
			}
		}
		return []float64{all}
	}
	do(t, open(t), func(s *Scope) {
		z := from(s, logits, Float32, tokens, n)
		z.RequireGrad(true)
		prob := s.Empty(Float32, n)
		s.Grad(true, func() {
			_, weight := Route(z, Routing{PerToken: k, Prob: prob, Balance: c})
			Backward([]*Tensor{weight}, []*Tensor{s.Zeros(Float32, tokens, k)})
		})
		whole := 0.0
		for e, p := range float64s(prob) {
			whole += c * n * loads[e] * p
		}
		wantClose(t, "loss from the returned mean probabilities", []float64{whole}, loss([][]float64{logits}), 1e-6)
		wantClose(t, "gradient of the logits", float64s(z.Grad()), differences(loss, [][]float64{logits}, 0, []float64{1}), 1e-6)
	})
}

// Sorting rows by expert, applying the experts and summing by token gives the same result as Experts.
func TestSortByExpert(t *testing.T) {
	const tokens, hidden, width, n, k = 5, 6, 3, 4, 2
	for _, dt := range []DType{Float32, BFloat16} {
		do(t, open(t), func(s *Scope) {
			random := func(seed uint64, rows, cols int64) *Tensor { return from(s, values(seed, rows*cols), dt, rows, cols) }
			x, gateUp, down := random(1, tokens, hidden), random(2, n*2*width, hidden), random(3, n*hidden, width)
			chosen := s.FromInt32([]int32{0, 1, 1, 0, 2, 1, 1, 0, 0, 1}, tokens, k)
			weight := s.FromFloat32([]float32{0.5, 0.25, 1, 2, 0.125, 3, 1, 0.75, 0.5, 1.5}, tokens, k)
			order := SortByExpert(chosen, n)
			if got := order.Counts(); !slices.Equal(got, []int{4, 5, 1, 0}) {
				t.Errorf("experts have %v rows, want 4, 5, 1 and 0", got)
			}
			rows := order.Rows(x)
			expert := s.FromInt32([]int32{0, 0, 0, 0, 1, 1, 1, 1, 1, 2}, tokens*k, 1)
			outputs := Experts(rows, expert, s.Full(Float32, 1, tokens*k, 1), MLPs{GateUp: gateUp, Down: down})
			want := Experts(x, chosen, weight, MLPs{GateUp: gateUp, Down: down})
			if got := order.Sums(outputs, tokens, weight); !got.Equal(want) {
				t.Errorf("%v: got %v, want %v", dt, float64s(got), float64s(want))
			}
			if got, want := order.Sums(rows, tokens, nil), x.Scale(k); !got.Equal(want) {
				t.Errorf("%v: rows of a token sum up to %v, want %v", dt, float64s(got), float64s(want))
			}
		})
	}
}

// Some GPUs multiply the rows of all experts together. They do not wait for the numbers of rows, which
// may be large or 0, so the work can be captured. The results are the same as with each expert by itself.
func TestExpertsTogether(t *testing.T) {
	needGPU(t)
	const tokens, hidden, width, n, k = 300, 16, 8, 5, 2
	d := openOn(t, "cuda")
	gates, downs, xs, weights := values(1, n*2*width*hidden), values(2, n*hidden*width), values(3, tokens*hidden), values(4, tokens*k)
	var chosen []int32
	for i := range int32(tokens) { // the last expert gets no tokens
		chosen = append(chosen, i*i%4, (i*i+1)%4)
	}
	of := func(s *Scope, dt DType) *Tensor {
		in := func(v []float64, shape ...int64) *Tensor { return from(s, v, BFloat16, shape...).To(dt) }
		of := MLPs{GateUp: in(gates, n*2*width, hidden), Down: in(downs, n*hidden, width)}
		return Experts(in(xs, tokens, hidden), s.FromInt32(chosen, tokens, k), from(s, weights, Float32, tokens, k), of)
	}
	var want []float64
	do(t, open(t), func(s *Scope) { want = float64s(of(s, Float32)) })
	do(t, d, func(s *Scope) {
		if !s.ExpertsTogether(BFloat16, hidden, width) || s.ExpertsTogether(Float32, hidden, width) || s.ExpertsTogether(BFloat16, hidden, 3) {
			t.Skip("this GPU multiplies the rows of each expert by themselves")
		}
		wantNear(t, "experts", float64s(of(s, BFloat16)), want, 1e-2)
		x, which, weight := from(s, xs, BFloat16, tokens, hidden), s.FromInt32(chosen, tokens, k), from(s, weights, Float32, tokens, k)
		gateUp, down := from(s, gates, BFloat16, n*2*width, hidden), from(s, downs, BFloat16, n*hidden, width)
		out := s.Keep(s.Empty(BFloat16, tokens, hidden))
		graph, err := s.Capture(func() { s.Scoped(func() { out.CopyFrom(Experts(x, which, weight, MLPs{GateUp: gateUp, Down: down})) }) })
		if err != nil {
			t.Fatal(err)
		}
		out.Fill_(math.NaN())
		graph.Replay()
		wantNear(t, "captured experts", float64s(out), want, 1e-2)
		graph.Drop()
		out.Drop()
	})
}
