package torch

import "testing"

// The benchmarks of operations measure the overhead: 100 operations on 16 elements, in a scope of their own.

func BenchmarkDo(b *testing.B) {
	d := open(b)
	for b.Loop() {
		do(b, d, func(*Scope) {})
	}
}

func BenchmarkAdd(b *testing.B) { benchmarkOp(b, func(x *Tensor) { x.Add(x) }) }

func BenchmarkAddInPlace(b *testing.B) { benchmarkOp(b, func(x *Tensor) { x.Add_(x) }) }

func BenchmarkView(b *testing.B) { benchmarkOp(b, func(x *Tensor) { x.View(4, 4) }) }

func benchmarkOp(b *testing.B, op func(x *Tensor)) {
	const repeats = 100
	d := open(b)
	do(b, d, func(s *Scope) {
		x := s.Full(Float32, 0, 16)
		for b.Loop() {
			s.Scoped(func() {
				for range repeats {
					op(x)
				}
			})
		}
	})
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(repeats*b.N), "ns/op-each")
}

// Computes the log-probabilities of 256 tokens over a vocabulary of 49,152, and the gradients. Reads h and w, writes dh and dw.
func BenchmarkHeadLogProb(b *testing.B) {
	const rows, width, vocab = 256, 576, 49152
	for _, train := range []bool{false, true} {
		name := map[bool]string{false: "score", true: "train"}[train]
		b.Run(name, func(b *testing.B) {
			d := open(b)
			do(b, d, func(s *Scope) {
				h, w := s.Full(Float32, 0.01, rows, width), s.Full(Float32, 0.02, vocab, width)
				targets, g := s.Zeros(Int32, rows), s.Full(Float32, 1, rows)
				h.RequireGrad(train)
				w.RequireGrad(train)
				if train {
					w.SetGrad(s.Zeros(Float32, vocab, width))
				}
				for b.Loop() {
					s.Scoped(func() {
						s.Grad(train, func() {
							logp, _ := HeadLogProb(h, w, targets, 1, 128)
							if train {
								Backward([]*Tensor{logp}, []*Tensor{g})
							}
						})
					})
				}
			})
		})
	}
}
