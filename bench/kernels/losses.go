package kernels

import (
	"math"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

const (
	trajectoryTokens = 16
	groupSize        = 8
	entropyCoef      = 0.01
	checkedRows      = 64 // rows of logits that are compared with a float64 reference
)

// tokenLogProb makes the provider of the kernel alone. The gradients of both outputs are given.
func tokenLogProb(d *deviceTensors, n dims) *measure.Native {
	rows, vocab, on := n["rows"], n["vocab"], d.backend()
	logits, targets := d.uniform(1, 1, rows, vocab), index(2, rows, vocab)
	target, logp, entropy := d.ints(targets), d.empty(rows), d.empty(rows)
	z := matrix(logits)
	p := &measure.Native{Work: func() error {
		return kernels.TokenLogProb(on, z, target.Ptr(), nil, 1, logp.Ptr(), entropy.Ptr())
	}}
	pristine := logits
	var dlogp, dentropy []float32
	if n["backward"] == 1 {
		dlogp, dentropy = uniform(5, rows), uniform(6, rows)
		gp, gh := d.floats(dlogp, rows), d.floats(dentropy, rows)
		pristine = d.keep(logits.Clone())
		forward := p.Work
		p.Reset = func() { logits.CopyFrom(pristine) } // the backward pass overwrites the logits
		p.Work = func() error {
			if err := forward(); err != nil {
				return err
			}
			return kernels.TokenLogProbBackward(on, z, target.Ptr(), nil, 1, gp.Ptr(), gh.Ptr())
		}
	}
	p.Error = func() (float64, error) {
		var lp, h, dz measure.MaxError
		gotLogp, gotEntropy := values(logp), values(entropy)
		for i := int64(0); i < rows; i += stride(rows) {
			z, y := d.rows(pristine, i, 1), targets[i]
			r := softmax(z, y)
			lp.Add(float64(gotLogp[i]), r.logp)
			h.Add(float64(gotEntropy[i]), r.entropy)
			if dlogp != nil {
				for v, got := range d.rows(logits, i, 1) {
					dz.Add(float64(got), r.gradient(float64(z[v]), int32(v) == y, float64(dlogp[i]), float64(dentropy[i])))
				}
			}
		}
		return max(lp.Value(), h.Value(), dz.Value()), nil
	}
	return p
}

// uniform returns n random numbers in [-1, 1).
func uniform(stream uint32, n int64) []float32 {
	v := make([]float32, n)
	measure.Uniform(v, stream, 1)
	return v
}

func matrix(logits *torch.Tensor) kernels.Logits {
	return kernels.Logits{Data: logits.Ptr(), DType: kernels.DType(logits.DType()), Rows: logits.Size(0), Vocab: logits.Size(1), Stride: logits.Size(1)}
}

// stride returns the distance between checked rows, so that about checkedRows rows are checked.
func stride(rows int64) int64 { return max(1, rows/checkedRows) }

// distribution is the softmax of a row of logits in float64.
type distribution struct{ lse, logp, entropy float64 }

func softmax[T float32 | float64](z []T, target int32) distribution {
	top := math.Inf(-1)
	for _, x := range z {
		top = max(top, float64(x))
	}
	sum, weighted := 0.0, 0.0
	for _, x := range z {
		e := math.Exp(float64(x) - top)
		sum += e
		weighted += e * (float64(x) - top)
	}
	lse := top + math.Log(sum)
	return distribution{lse, float64(z[target]) - lse, math.Log(sum) - weighted/sum}
}

// gradient returns the gradient of a logit z, given the gradients of log-prob and entropy.
func (d distribution) gradient(z float64, target bool, dlogp, dentropy float64) float64 {
	p := math.Exp(z - d.lse)
	g := -dlogp*p - dentropy*p*(z-d.lse+d.entropy)
	if target {
		g += dlogp
	}
	return g
}

// tokens is a batch of trajectories of 16 tokens in groups of 8, all of weight 1. Its loss is a mean over tokens.
type tokens struct {
	targets   []int32
	old       []float32 // log-probs
	advantage []float32 // one for each trajectory
	target    *torch.Tensor
	batch     kernels.LossBatch
	objective mgrpo.Objective
	totals    kernels.LossTotals
}

func newTokens(d *deviceTensors, n dims) (*tokens, error) {
	rows := n["rows"]
	count := int(rows / trajectoryTokens)
	t := &tokens{targets: index(2, rows, n["vocab"]), old: make([]float32, rows), advantage: make([]float32, count),
		objective: mgrpo.DefaultObjective()}
	t.objective.EntropyCoef = entropyCoef
	measure.Uniform(t.old, 3, 0.3)
	for i := range t.old {
		t.old[i] -= float32(math.Log(float64(n["vocab"])))
	}
	measure.Uniform(t.advantage, 4, 1)
	t.target = d.ints(t.targets)
	all := kernels.Trajectories{}
	t.batch = kernels.LossBatch{CuSeqlens: []int64{0}, DType: kernels.Float32, LogpOld: d.floats(t.old, rows).Ptr(),
		Mask: d.keep(d.s.Full(torch.Uint8, 1, rows)).Ptr()}
	for j, a := range t.advantage {
		all.Group = append(all.Group, int64(j/groupSize))
		all.Weight = append(all.Weight, 1)
		all.Advantage = append(all.Advantage, float64(a))
		all.Trained = append(all.Trained, trajectoryTokens)
		t.batch.CuSeqlens = append(t.batch.CuSeqlens, int64(j+1)*trajectoryTokens)
	}
	t.batch.Weight, t.batch.Advantage = all.Weight, all.Advantage
	var err error
	t.batch.Coefficient, t.totals, err = kernels.LossCoefficients(t.objective, all)
	return t, err
}

// expected returns a token's share of the loss and its gradients, in float64.
func (t *tokens) expected(i int64, logp, entropy float64) (loss, dlogp, dentropy float64) {
	n, a := float64(len(t.targets)), float64(t.advantage[i/trajectoryTokens])
	ratio := math.Exp(logp - float64(t.old[i]))
	surrogate := ratio * a
	dlogp = -surrogate / n
	if clipped := min(max(ratio, 1-t.objective.EpsLow), 1+t.objective.EpsHigh) * a; clipped < surrogate {
		surrogate, dlogp = clipped, 0
	}
	return (-surrogate - entropyCoef*entropy) / n, dlogp, -entropyCoef / n
}

// policyLossFromLogits makes the provider of the loss and the logits' gradient, which overwrites the logits.
func policyLossFromLogits(d *deviceTensors, n dims) *measure.Native {
	rows, vocab, on := n["rows"], n["vocab"], d.backend()
	logits := d.uniform(1, 1, rows, vocab)
	pristine := d.keep(logits.Clone())
	z, logp, entropy := matrix(logits), d.empty(rows), d.empty(rows)
	t, err := newTokens(d, n)
	var loss float64
	return &measure.Native{
		Reset: func() { logits.CopyFrom(pristine) },
		Work: func() error {
			if err != nil {
				return err
			}
			sums, err := kernels.PolicyLossFromLogits(on, z, t.target.Ptr(), 1, t.batch, t.objective, logp.Ptr(), entropy.Ptr())
			loss = sums.Stats(t.totals).Loss
			return err
		},
		Error: func() (float64, error) {
			var dz, l measure.MaxError
			want := 0.0
			for from := int64(0); from < rows; from += checkedRows {
				count := min(checkedRows, rows-from)
				z := d.rows(pristine, from, count)
				want += sum(count, func(i int64) float64 { return t.loss(from+i, z[i*vocab:(i+1)*vocab]) })
				i := from / checkedRows % count // one row of each block
				t.addGradient(&dz, from+i, z[i*vocab:(i+1)*vocab], d.rows(logits, from+i, 1))
			}
			l.Add(loss, want)
			return max(dz.Value(), l.Value()), nil
		},
	}
}

// sum returns the sum of share(i) over rows 0 to n-1, computed on all cores.
func sum(n int64, share func(i int64) float64) (total float64) {
	parts := make([]float64, n)
	measure.Share(int(n), cgroup.UsableCores().N, func(i, j int) {
		for ; i < j; i++ {
			parts[i] = share(int64(i))
		}
	})
	for _, p := range parts {
		total += p
	}
	return total
}

// loss returns row i's share of the loss.
func (t *tokens) loss(i int64, z []float32) float64 {
	r := softmax(z, t.targets[i])
	loss, _, _ := t.expected(i, r.logp, r.entropy)
	return loss
}

// addGradient adds row i's gradient to an error.
func (t *tokens) addGradient(dz *measure.MaxError, i int64, z, got []float32) {
	y := t.targets[i]
	r := softmax(z, y)
	_, dlogp, dentropy := t.expected(i, r.logp, r.entropy)
	for v, g := range got {
		dz.Add(float64(g), r.gradient(float64(z[v]), int32(v) == y, dlogp, dentropy))
	}
}

// linearPolicyLoss makes the provider of the loss and both gradients from hidden states and a head's weights. As in training, the weights'
// gradient is added to an existing buffer (float32 on a GPU), and the same number of rows of logits exists at a time.
func linearPolicyLoss(d *deviceTensors, n dims) *measure.Native {
	h, w := d.uniform(1, 1, n["rows"], n["width"]), d.uniform(7, 0.1, n["vocab"], n["width"])
	w.RequireGrad(true)
	gpu, real := d.s.Device().IsCUDA(), d.real
	if gpu {
		real = torch.Float32
	}
	dw := d.keep(d.s.Zeros(real, n["vocab"], n["width"]))
	sum := dw
	if !gpu {
		w.SetGrad(dw)
		sum = nil
	}
	t, err := newTokens(d, n)
	var loss float64
	work := func() (*torch.Tensor, error) {
		if err != nil {
			return nil, err
		}
		r, err := torch.LinearPolicyLoss(h, w, sum, t.target, 1, learner.HeadRows(gpu, true), t.batch, t.objective)
		loss = r.Sums.Stats(t.totals).Loss
		return r.DHidden, err
	}
	return &measure.Native{
		Reset: func() { dw.Zero_() },
		Work: func() (err error) {
			d.s.Scoped(func() { _, err = work() })
			return err
		},
		Error: func() (float64, error) {
			dw.Zero_()
			dh, err := work()
			if err != nil {
				return 0, err
			}
			return t.linearError(d.s, h, w, dh, dw, loss), nil
		},
	}
}

// linearError computes everything again in float64, some rows of logits at a time.
func (t *tokens) linearError(s *torch.Scope, h, w, gotDH, gotDW *torch.Tensor, loss float64) float64 {
	rows, vocab := h.Size(0), w.Size(0)
	wide := w.Detach().To(torch.Float64)
	dw, want, worst := s.Zeros(torch.Float64, w.Shape()...), 0.0, 0.0
	var l measure.MaxError
	for from := int64(0); from < rows; from += checkedRows {
		count := min(checkedRows, rows-from)
		s.Scoped(func() {
			x := h.Narrow(0, from, count).To(torch.Float64)
			logits := x.MatMul(wide.Transpose(0, 1)).Contiguous()
			z := float64s(logits)
			want += sum(count, func(i int64) float64 { return t.rowGradient(from+i, z[i*vocab:(i+1)*vocab]) })
			logits.SetBytes(bytesOf(z), torch.Float64)
			worst = max(worst, maxError(s, gotDH.Narrow(0, from, count), logits.MatMul(wide)))
			dw.AddScaled_(logits.Transpose(0, 1).MatMul(x), 1)
		})
	}
	l.Add(loss, want)
	return max(worst, l.Value(), maxError(s, gotDW, dw))
}

// rowGradient overwrites row i of the logits by the loss's gradient and returns the row's share of the loss.
func (t *tokens) rowGradient(i int64, z []float64) float64 {
	target := t.targets[i]
	r := softmax(z, target)
	loss, dlogp, dentropy := t.expected(i, r.logp, r.entropy)
	for v, x := range z {
		z[v] = r.gradient(x, int32(v) == target, dlogp, dentropy)
	}
	return loss
}
