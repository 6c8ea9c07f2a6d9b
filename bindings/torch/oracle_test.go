package torch

import (
	"math"
	"slices"
)

// The operations in float64 Go, directly from their definitions.

func linearOracle(x, w, b []float64, k int) []float64 {
	n := len(w) / k
	y := make([]float64, len(x)/k*n)
	for r := range len(x) / k {
		for j := range n {
			sum := 0.0
			if b != nil {
				sum = b[j]
			}
			for i := range k {
				sum += x[r*k+i] * w[j*k+i]
			}
			y[r*n+j] = sum
		}
	}
	return y
}

func rmsNormOracle(x, w []float64, offset, eps float64) []float64 {
	d := len(w)
	y := make([]float64, len(x))
	for r := 0; r < len(x); r += d {
		sum := 0.0
		for i := range d {
			sum += x[r+i] * x[r+i]
		}
		for i := range d {
			y[r+i] = x[r+i] / math.Sqrt(sum/float64(d)+eps) * (offset + w[i])
		}
	}
	return y
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

func geluTanh(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func gluOracle(x []float64, f int, activation func(float64) float64) []float64 {
	y := make([]float64, len(x)/2)
	for r := range len(x) / (2 * f) {
		for i := range f {
			y[r*f+i] = activation(x[2*f*r+i]) * x[2*f*r+f+i]
		}
	}
	return y
}

// headsOracle splits the rows of the product in[0] into two heads of queries, one of keys and one of values. It normalises queries and keys
// with the weights in[1] and in[2] if given, and rotates their first 8 dimensions. It returns all queries, then all keys, then all values.
func headsOracle(in [][]float64, cos, sin []float64, pos []int32, hd int, offset float64) []float64 {
	take := func(from, heads int) (x []float64) {
		for r := range pos {
			x = append(x, in[0][(4*r+from)*hd:(4*r+from+heads)*hd]...)
		}
		return x
	}
	q, k, v := take(0, 2), take(2, 1), take(3, 1)
	if len(in) == 3 {
		q, k = rmsNormOracle(q, in[1], offset, 1e-5), rmsNormOracle(k, in[2], offset, 1e-5)
	}
	return slices.Concat(ropeOracle(q, cos, sin, pos, 2, hd, 8), ropeOracle(k, cos, sin, pos, 1, hd, 8), v)
}

// lateHeadsOracle first reverses the columns within each head of 8. It then does the same as headsOracle, except that it normalises after
// the rotation and multiplies queries by the growth of their positions.
func lateHeadsOracle(in [][]float64, cos, sin, growth []float64, pos []int32) []float64 {
	const hd = 8
	reversed := slices.Clone(in[0])
	for i := 0; i < len(reversed); i += hd {
		slices.Reverse(reversed[i : i+hd])
	}
	turned := headsOracle([][]float64{reversed}, cos, sin, pos, hd, 0)
	rows := len(pos)
	q, k, v := turned[:2*hd*rows], turned[2*hd*rows:3*hd*rows], turned[3*hd*rows:]
	q, k = rmsNormOracle(q, in[1], 0, 1e-5), rmsNormOracle(k, in[2], 0, 1e-5)
	for i := range q {
		q[i] *= growth[pos[i/(2*hd)]]
	}
	return slices.Concat(q, k, v)
}

func ropeOracle(x, cos, sin []float64, pos []int32, heads, hd, rotary int) []float64 {
	y := slices.Clone(x)
	half := rotary / 2
	for r, p := range pos {
		for h := range heads {
			for i := range half {
				a, b := (r*heads+h)*hd+i, (r*heads+h)*hd+half+i
				c, s := cos[int(p)*half+i], sin[int(p)*half+i]
				y[a], y[b] = x[a]*c-x[b]*s, x[b]*c+x[a]*s
			}
		}
	}
	return y
}

func clampedGate(x float64) float64 { g := min(x, 7); return g / (1 + math.Exp(-1.702*g)) }

func clampedGLUOracle(x []float64, f int) []float64 {
	up := slices.Clone(x)
	for i := range up {
		if i/f%2 == 1 {
			up[i] = min(max(x[i], -7), 7) + 1
		}
	}
	return gluOracle(up, f, clampedGate)
}

// attentionOracle attends from each row of q to the rows of k and v that it sees, or only to
// the last `window` of them if window > 0. follows and sinks may be nil.
func attentionOracle(q, k, v []float64, cu, follows []int32, heads, kv, hd int, scale float64, window int, sinks []float64) []float64 {
	out := make([]float64, len(q))
	seen := make([][]int, len(q)/(heads*hd)) // by row
	for b := range len(cu) - 1 {
		for r := int(cu[b]); r < int(cu[b+1]); r++ {
			before := r - 1
			if r == int(cu[b]) {
				before = -1
				if follows != nil {
					before = int(follows[b])
				}
			}
			if before >= 0 {
				seen[r] = slices.Clone(seen[before])
			}
			seen[r] = append(seen[r], r)
			visible := seen[r]
			if window > 0 {
				visible = visible[max(0, len(visible)-window):]
			}
			for h := range heads {
				g := h / (heads / kv)
				p := make([]float64, len(visible))
				sum := 0.0
				if sinks != nil {
					sum = math.Exp(sinks[h])
				}
				for j, at := range visible {
					dot := 0.0
					for i := range hd {
						dot += q[(r*heads+h)*hd+i] * k[(at*kv+g)*hd+i]
					}
					p[j] = math.Exp(scale * dot)
					sum += p[j]
				}
				for j, at := range visible {
					for i := range hd {
						out[(r*heads+h)*hd+i] += p[j] / sum * v[(at*kv+g)*hd+i]
					}
				}
			}
		}
	}
	return out
}

// headOracle returns the log-probabilities of the targets, then the entropies.
func headOracle(h, w []float64, targets []int32, d int, tau, limit float64) []float64 {
	logits := linearOracle(h, w, nil, d)
	for i, z := range logits {
		if limit > 0 {
			logits[i] = limit * math.Tanh(z/limit)
		}
	}
	n, vocab := len(targets), len(w)/d
	out := make([]float64, 2*n)
	for r := range n {
		z := logits[r*vocab : (r+1)*vocab]
		sum, mean := 0.0, 0.0
		for _, l := range z {
			sum += math.Exp(l / tau)
		}
		for _, l := range z {
			mean += math.Exp(l/tau) / sum * l / tau
		}
		out[r], out[n+r] = z[targets[r]]/tau-math.Log(sum), math.Log(sum)-mean
	}
	return out
}
