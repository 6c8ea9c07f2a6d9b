package kernels

import (
	"math"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// groupSizes returns sizes from 1 to 15 with a mean of 8.
func groupSizes(groups int64) []int32 {
	sizes := make([]int32, groups)
	measure.Index(sizes, 2, 15)
	for i := range sizes {
		sizes[i]++
	}
	return sizes
}

func members(groups int64) (n int64) {
	for _, size := range groupSizes(groups) {
		n += int64(size)
	}
	return n
}

func groupAdvantage(d *deviceTensors, n dims) *measure.Native {
	offsets := []int64{0}
	for _, size := range groupSizes(n["groups"]) {
		offsets = append(offsets, offsets[len(offsets)-1]+int64(size))
	}
	rewards := uniform(1, offsets[len(offsets)-1])
	groups, on := n["groups"], d.backend()
	in, out := d.floats(rewards, int64(len(rewards))), d.empty(int64(len(rewards)))
	at := d.keep(d.s.FromInt64(offsets, groups+1))
	stats := d.keep(d.s.Empty(torch.Uint8, groups*kernels.GroupStatsBytes))
	return &measure.Native{
		Work: func() error {
			return kernels.GroupAdvantageRaw(on, kernels.Float32, in.Ptr(), nil, at.Ptr(), groups, mgrpo.DefaultConvention(), out.Ptr(), stats.Ptr())
		},
		Error: func() (float64, error) { return advantageError(values(out), rewards, offsets), nil },
	}
}

func advantageError(got, rewards []float32, offsets []int64) float64 {
	var worst measure.MaxError
	for g, from := range offsets[:len(offsets)-1] {
		group := rewards[from:offsets[g+1]]
		mean, deviation := moments(group)
		for i, r := range group {
			want := 0.0
			if deviation >= mgrpo.DefaultConvention().SigmaMin {
				want = (float64(r) - mean) / deviation
			}
			worst.Add(float64(got[int(from)+i]), want)
		}
	}
	return worst.Value()
}

func moments(v []float32) (mean, deviation float64) {
	for _, x := range v {
		mean += float64(x) / float64(len(v))
	}
	for _, x := range v {
		deviation += (float64(x) - mean) * (float64(x) - mean) / float64(len(v))
	}
	return mean, math.Sqrt(deviation)
}

// adamW makes the provider of the norm and the update. Every run changes the parameters. The first run is checked.
func adamW(d *deviceTensors, n dims) *measure.Native {
	count, on := n["n"], d.backend()
	before, gradient := make([]float32, count), uniform(2, count)
	measure.Uniform(before, 1, 0.1)
	p, g, m, v := d.floats(before, count), d.floats(gradient, count), d.keep(d.s.Zeros(torch.Float32, count)), d.keep(d.s.Zeros(torch.Float32, count))
	c := kernels.AdamWConfig{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Clip: 1}
	return &measure.Native{
		Work: func() error {
			norm, err := kernels.GradNorm(on, g.Ptr(), count)
			if err != nil {
				return err
			}
			c.Step++
			return kernels.AdamW(on, p.Ptr(), m.Ptr(), v.Ptr(), g.Ptr(), nil, count, norm, c)
		},
		Error: func() (float64, error) {
			squares := 0.0
			for _, x := range gradient {
				squares += float64(x) * float64(x)
			}
			scale := min(1, c.Clip/(math.Sqrt(squares)+1e-6))
			gotP, gotM, gotV := values(p), values(m), values(v)
			var ep, em, ev measure.MaxError
			for i, x := range before {
				grad := float64(gradient[i]) * scale
				ep.Add(float64(gotP[i]), float64(x)*(1-c.LR*c.WeightDecay)-c.LR*grad/(math.Abs(grad)+c.Eps))
				em.Add(float64(gotM[i]), (1-c.Beta1)*grad)
				ev.Add(float64(gotV[i]), (1-c.Beta2)*grad*grad)
			}
			return max(ep.Value(), em.Value(), ev.Value()), nil
		},
	}
}

// sample makes the provider of draws from the whole distribution. Tokens differ between providers, so each provider's log-probs of its
// own tokens are checked.
func sample(d *deviceTensors, n dims) *measure.Native {
	rows, vocab := n["rows"], n["vocab"]
	logits, token, logp, on := d.uniform(1, 4, rows, vocab), d.ints(make([]int32, rows)), d.empty(rows), d.backend()
	settings := make([]kernels.Sampling, rows)
	for i := range settings {
		settings[i] = kernels.Sampling{Temperature: 1, Key: [2]uint32{1, uint32(i)}}
	}
	z := matrix(logits)
	return &measure.Native{
		Work: func() error {
			return kernels.Sample(on, z, settings, token.Ptr(), logp.Ptr())
		},
		Error: func() (float64, error) {
			var worst measure.MaxError
			got, tokens := values(logp), int32s(token)
			for i := range rows {
				r := softmax(d.rows(logits, i, 1), tokens[i])
				worst.Add(float64(got[i]), r.logp)
			}
			return worst.Value(), nil
		},
	}
}
