package selftest

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/oracle"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// allKernels returns all kernels that are tried.
func allKernels() []kernel {
	return append(append(layerKernels(), kernel{"moe_route", floatBound, route}, kernel{"linear_policy_loss", floatBound, fromHidden}), lossKernels()...)
}

// lossKernels returns the kernels of the RL part, which do not need tensors.
func lossKernels() []kernel {
	return []kernel{
		{"group_advantage", 1e-12, func(t *trial) error { return advantage[float64](t, kernels.Float64) }},
		{"group_advantage_f32", floatBound, func(t *trial) error { return advantage[float32](t, kernels.Float32) }},
		{"token_logprob", floatBound, logProb},
		{"token_logprob_bwd", floatBound, logProbBackward},
		{"policy_loss", floatBound, policyLoss},
		{"policy_loss_from_logits", floatBound, fromLogits},
		{"grad_norm", 1e-11, gradNorm},
		{"adamw", floatBound, adamW},
		{"sample", floatBound, sample},
	}
}

// vocab contains several blocks of each size that kernels use, and a remainder.
const vocab = 2051

// memory calls f, which may allocate arrays in the backend's memory. Afterwards it downloads the arrays that f returned and
// frees all.
func (t *trial) memory(f func(m *kernels.Memory) (results []interface{ Download() error }, err error)) error {
	m := kernels.NewMemory(t.on)
	results, err := f(m)
	err = errors.Join(err, m.Err())
	for _, r := range results {
		if err == nil {
			err = r.Download()
		}
	}
	return errors.Join(err, m.Free())
}

type downloads = []interface{ Download() error }

// route tries the choice of 2 of 7 experts, forward and backward. The logits of a row are never nearly equal.
func route(t *trial) error {
	const experts = 7
	var z []float32
	var want, place, dz []float64
	g := uniform(1, 2*t.rows)
	for r := range t.rows {
		first := index(uint32(r), 1, experts)[0] // the largest logit belongs to the expert e with e + first = 6, modulo 7
		best := []int32{(2*experts - 1 - first) % experts, (2*experts - 2 - first) % experts}
		p, sum := make([]float64, experts), 0.0
		for e := range int32(experts) {
			v := float32((e+first)%experts) * 0.6
			z, p[e] = append(z, v), math.Exp(float64(v))
			sum += p[e]
		}
		toAll := 0.0
		for j, e := range best {
			want, place = append(want, p[e]/sum), append(place, float64(e))
			toAll += float64(g[2*r+int64(j)]) * p[e] / sum
		}
		for e := range int32(experts) {
			own := -toAll
			if j := slices.Index(best, e); j >= 0 {
				own += float64(g[2*r+int64(j)])
			}
			dz = append(dz, own*p[e]/sum)
		}
	}
	logits := t.s.FromFloat32(z, t.rows, experts)
	logits.RequireGrad(true)
	return t.work(t.rows*2, func() error {
		t.s.Grad(true, func() {
			chosen, weight := torch.Route(logits, torch.Routing{PerToken: 2})
			torch.Backward(one(weight), one(t.s.FromFloat32(g, t.rows, 2)))
			compare(t, values(weight), want)
			compare(t, values(chosen), place)
		})
		compare(t, values(logits.Grad()), dz)
		return nil
	})
}

// advantage normalises groups of 1 to 15 members with weights 0 to 2.
func advantage[T float32 | float64](t *trial, dtype kernels.DType) error {
	c := mgrpo.DefaultConvention()
	offsets := []int64{0}
	var groups []mgrpo.RewardGroup
	var rewards []T
	var weights []float64
	for i, size := range index(1, t.rows, 15) {
		g := mgrpo.RewardGroup{}
		for j, r := range uniform(uint32(50+i), int64(size)+1) {
			rewards, weights = append(rewards, T(r)), append(weights, float64((i+j)%3))
			g.Rewards, g.Weights = append(g.Rewards, float64(T(r))), append(g.Weights, float64((i+j)%3))
		}
		groups, offsets = append(groups, g), append(offsets, int64(len(rewards)))
	}
	got, stats := make([]T, len(rewards)), make([]mgrpo.GroupStats, len(groups))
	err := t.memory(func(m *kernels.Memory) (downloads, error) {
		r, w, at, a, s := kernels.Put(m, rewards), kernels.Put(m, weights), kernels.Put(m, offsets), kernels.Put(m, got), kernels.Put(m, stats)
		return downloads{a}, t.work(int64(len(got)), func() error {
			return kernels.GroupAdvantageRaw(t.on, dtype, r.Pointer(), w.Pointer(), at.Pointer(), int64(len(groups)), c, a.Pointer(), s.Pointer())
		})
	})
	normalised, wrong := oracle.Normalise(c, groups)
	var want []float64
	for _, g := range normalised {
		want = append(want, g.Advantage...)
	}
	compare(t, got, want)
	return errors.Join(err, wrong)
}

// logits returns rows of logits over a vocabulary, in the trial's type, and the same numbers in float64.
func (t *trial) logits() (host []byte, z []float64, dtype kernels.DType) {
	numbers := uniform(1, t.rows*vocab)
	for _, v := range numbers {
		bits := math.Float32bits(8 * v)
		if t.real == torch.BFloat16 {
			bits &= 0xffff0000
			host = binary.LittleEndian.AppendUint16(host, uint16(bits>>16))
		} else {
			host = binary.LittleEndian.AppendUint32(host, bits)
		}
		z = append(z, float64(math.Float32frombits(bits)))
	}
	if t.real == torch.BFloat16 {
		return host, z, kernels.BFloat16
	}
	return host, z, kernels.Float32
}

// matrix describes rows of logits at an address.
func (t *trial) matrix(at unsafe.Pointer, dtype kernels.DType) kernels.Logits {
	return kernels.Logits{Data: at, DType: dtype, Rows: t.rows, Vocab: vocab, Stride: vocab}
}

// floats converts logits to float32.
func (t *trial) floats(host []byte) []float32 {
	out, dtype := make([]float32, t.rows*vocab), weights.F32
	if t.real == torch.BFloat16 {
		dtype = weights.BF16
	}
	dtype.Decode(out, host)
	return out
}

const tau = 0.7

func logProb(t *trial) error {
	host, z, dtype := t.logits()
	targets, logp, entropy := index(2, t.rows, vocab), make([]float32, t.rows), make([]float32, t.rows)
	err := t.memory(func(m *kernels.Memory) (downloads, error) {
		at, y, p, h := kernels.Put(m, host), kernels.Put(m, targets), kernels.Put(m, logp), kernels.Put(m, entropy)
		return downloads{p, h}, t.work(t.rows*vocab, func() error {
			return kernels.TokenLogProb(t.on, t.matrix(at.Pointer(), dtype), y.Pointer(), nil, tau, p.Pointer(), h.Pointer())
		})
	})
	wantP, wantH, wrong := logProbs(z, vocab, targets)
	compare(t, logp, wantP)
	compare(t, entropy, wantH)
	return errors.Join(err, wrong)
}

// logProbs returns the log-probs and entropies of rows of `words` logits.
func logProbs(z []float64, words int, targets []int32) (logp, entropy []float64, err error) {
	for r, y := range targets {
		p, h, wrong := oracle.TokenLogProb(z[r*words:][:words], int(y), tau)
		logp, entropy, err = append(logp, p), append(entropy, h), errors.Join(err, wrong)
	}
	return logp, entropy, err
}

func logProbBackward(t *trial) error {
	host, z, dtype := t.logits()
	targets, dlogp, dentropy := index(2, t.rows, vocab), uniform(3, t.rows), uniform(4, t.rows)
	err := t.memory(func(m *kernels.Memory) (downloads, error) {
		at, y, p, h := kernels.Put(m, host), kernels.Put(m, targets), kernels.Put(m, dlogp), kernels.Put(m, dentropy)
		return downloads{at}, t.work(t.rows*vocab, func() error {
			return kernels.TokenLogProbBackward(t.on, t.matrix(at.Pointer(), dtype), y.Pointer(), nil, tau, p.Pointer(), h.Pointer())
		})
	})
	got := t.floats(host)
	for r, y := range targets {
		want, wrong := oracle.TokenLogProbGrad(z[r*vocab:][:vocab], int(y), tau, float64(dlogp[r]), float64(dentropy[r]))
		compare(t, got[r*vocab:][:vocab], want)
		err = errors.Join(err, wrong)
	}
	return err
}

// trajectories holds tokens whose ratios lie on both sides of the clip range. Some of them are not trained.
type trajectories struct {
	oracle.Batch
	objective mgrpo.Objective
	old       []float32
	mask      []uint8
	cu        []int64
	c         []float64
}

// trajectories splits the rows into two trajectories. logp and entropy come from the current policy.
func (t *trial) trajectories(logp, entropy []float64) (*trajectories, error) {
	b := &trajectories{objective: mgrpo.DefaultObjective(), cu: []int64{0, t.rows / 2, t.rows}}
	b.objective.EntropyCoef = 0.01
	b.Batch = oracle.Batch{CuSeqlens: []int{0, int(t.rows / 2), int(t.rows)}, Group: []int64{0, 0}, Weight: []float64{1, 2}, Advantage: []float64{0.8, -1.3},
		New: logp, Entropy: entropy}
	trained := []int64{0, 0}
	for i, shift := range uniform(6, t.rows) {
		old := float32(logp[i]) + 0.6*shift
		read := i%5 != 4
		b.old, b.Old, b.Mask, b.mask = append(b.old, old), append(b.Old, float64(old)), append(b.Mask, read), append(b.mask, 0)
		if read {
			b.mask[i] = 1
			trained[min(int64(i)/(t.rows/2), 1)]++
		}
	}
	var err error
	b.c, _, err = kernels.LossCoefficients(b.objective, kernels.Trajectories{Group: b.Group, Weight: b.Weight, Advantage: b.Advantage, Trained: trained})
	return b, err
}

// batch returns the batch in the form that kernels take, without the current policy's values.
func (b *trajectories) batch(m *kernels.Memory) kernels.LossBatch {
	return kernels.LossBatch{CuSeqlens: b.cu, Weight: b.Weight, Advantage: b.Advantage, Coefficient: b.c, DType: kernels.Float32,
		Mask: kernels.Put(m, b.mask).Pointer(), LogpOld: kernels.Put(m, b.old).Pointer()}
}

func policyLoss(t *trial) error {
	logp, entropy := uniform(7, t.rows), uniform(8, t.rows)
	for i := range logp {
		logp[i], entropy[i] = logp[i]-2, entropy[i]+1
	}
	b, err := t.trajectories(toFloat64(logp), toFloat64(entropy))
	if err != nil {
		return err
	}
	dlogp, dentropy := make([]float32, t.rows), make([]float32, t.rows)
	err = t.memory(func(m *kernels.Memory) (downloads, error) {
		batch := b.batch(m)
		p, h := kernels.Put(m, dlogp), kernels.Put(m, dentropy)
		batch.LogpNew, batch.Entropy = kernels.Put(m, logp).Pointer(), kernels.Put(m, entropy).Pointer()
		return downloads{p, h}, t.work(2*t.rows, func() error {
			_, err := kernels.PolicyLoss(t.on, batch, b.objective, p.Pointer(), h.Pointer())
			return err
		})
	})
	want, wrong := oracle.Loss(b.objective, b.Batch)
	compare(t, dlogp, want.DLogProb)
	compare(t, dentropy, want.DEntropy)
	return errors.Join(err, wrong)
}

func fromLogits(t *trial) error {
	host, z, dtype := t.logits()
	targets, gotP, gotH := index(2, t.rows, vocab), make([]float32, t.rows), make([]float32, t.rows)
	logp, entropy, wrong := logProbs(z, vocab, targets)
	b, err := t.trajectories(logp, entropy)
	if err = errors.Join(err, wrong); err != nil {
		return err
	}
	err = t.memory(func(m *kernels.Memory) (downloads, error) {
		batch := b.batch(m)
		at, y, p, h := kernels.Put(m, host), kernels.Put(m, targets), kernels.Put(m, gotP), kernels.Put(m, gotH)
		return downloads{at, p, h}, t.work(t.rows*vocab, func() error {
			_, err := kernels.PolicyLossFromLogits(t.on, t.matrix(at.Pointer(), dtype), y.Pointer(), tau, batch, b.objective, p.Pointer(), h.Pointer())
			return err
		})
	})
	want, wrong := oracle.Loss(b.objective, b.Batch)
	if err = errors.Join(err, wrong); err != nil {
		return err
	}
	got := t.floats(host)
	for r, y := range targets {
		row, wrong := oracle.TokenLogProbGrad(z[r*vocab:][:vocab], int(y), tau, want.DLogProb[r], want.DEntropy[r])
		compare(t, got[r*vocab:][:vocab], row)
		err = errors.Join(err, wrong)
	}
	return err
}

// fromHidden tries the policy loss computed from hidden states, for which logits exist only a few rows at a time, and its
// gradient for the hidden states.
func fromHidden(t *trial) error {
	const width, words = 37, 301
	h, w := t.tensor(1, t.rows, width), t.tensor(2, words, width)
	x, rows := toFloat64(values(h)), toFloat64(values(w))
	targets := index(2, t.rows, words)
	z := make([]float64, t.rows*words)
	for at := range z {
		for i := range width {
			z[at] += x[at/words*width+i] * rows[at%words*width+i]
		}
	}
	logp, entropy, wrong := logProbs(z, words, targets)
	b, err := t.trajectories(logp, entropy)
	if err = errors.Join(err, wrong); err != nil {
		return err
	}
	var got torch.HeadLoss
	err = t.memory(func(m *kernels.Memory) (downloads, error) {
		batch := b.batch(m)
		return nil, t.work(t.rows*words, func() (err error) {
			got, err = torch.LinearPolicyLoss(h, w, nil, t.ints(targets...), tau, 3, batch, b.objective)
			return err
		})
	})
	want, wrong := oracle.Loss(b.objective, b.Batch)
	if err = errors.Join(err, wrong); err != nil {
		return err
	}
	dh := make([]float64, len(x))
	for r, y := range targets {
		dz, wrong := oracle.TokenLogProbGrad(z[r*words:][:words], int(y), tau, want.DLogProb[r], want.DEntropy[r])
		err = errors.Join(err, wrong)
		for v, g := range dz {
			for i := range width {
				dh[r*width+i] += g * rows[v*width+i]
			}
		}
	}
	compare(t, values(got.DHidden), dh)
	return err
}

func gradNorm(t *trial) error {
	grad := uniform(1, 4099*t.rows)
	sum := 0.0
	for _, g := range grad {
		sum += float64(g) * float64(g)
	}
	var norm float64
	err := t.memory(func(m *kernels.Memory) (downloads, error) {
		g := kernels.Put(m, grad)
		return nil, t.work(int64(len(grad)), func() (err error) {
			norm, err = kernels.GradNorm(t.on, g.Pointer(), int64(len(grad)))
			return err
		})
	})
	compare(t, []float64{norm}, []float64{math.Sqrt(sum)})
	return err
}

func adamW(t *trial) error {
	n := 4099 * t.rows
	c := kernels.AdamWConfig{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, Clip: 1, Step: 3}
	p, m1, v, g := uniform(1, n), uniform(2, n), uniform(3, n), uniform(4, n)
	half := make([]uint16, n)
	norm := 2.5
	var wantP, wantM, wantV []float64
	for i := range p {
		v[i] = v[i] * v[i]
		scaled := float64(g[i]) * c.Clip / norm
		first, second := c.Beta1*float64(m1[i])+(1-c.Beta1)*scaled, c.Beta2*float64(v[i])+(1-c.Beta2)*scaled*scaled
		step := first / (1 - math.Pow(c.Beta1, float64(c.Step))) / (math.Sqrt(second/(1-math.Pow(c.Beta2, float64(c.Step)))) + c.Eps)
		wantP, wantM, wantV = append(wantP, float64(p[i])*(1-c.LR*c.WeightDecay)-c.LR*step), append(wantM, first), append(wantV, second)
	}
	err := t.memory(func(m *kernels.Memory) (downloads, error) {
		to, first, second, grad, rounded := kernels.Put(m, p), kernels.Put(m, m1), kernels.Put(m, v), kernels.Put(m, g), kernels.Put(m, half)
		return downloads{to, first, second, rounded}, t.work(n, func() error {
			return kernels.AdamW(t.on, to.Pointer(), first.Pointer(), second.Pointer(), grad.Pointer(), rounded.Pointer(), n, norm, c)
		})
	})
	compare(t, p, wantP)
	compare(t, m1, wantM)
	compare(t, v, wantV)
	for i, h := range half {
		if was := math.Float32bits(p[i]); h != uint16((was+0x7fff+was>>16&1)>>16) {
			return errors.Join(err, fmt.Errorf("parameter %d is %v and its bfloat16 %#x", i, p[i], h))
		}
	}
	return err
}

// sample draws with and without temperature. A token is right if the random number lies within its interval of
// probabilities. The ends of the interval may differ from float64 by rounding.
func sample(t *trial) error {
	host, z, dtype := t.logits()
	rows, token, logp := make([]kernels.Sampling, t.rows), make([]int32, t.rows), make([]float32, t.rows)
	for r := range rows {
		rows[r] = kernels.Sampling{Temperature: tau * float64(r%2), Key: [2]uint32{7, uint32(r)}, Position: uint64(3 * r)}
	}
	err := t.memory(func(m *kernels.Memory) (downloads, error) {
		at, y, p := kernels.Put(m, host), kernels.Put(m, token), kernels.Put(m, logp)
		return downloads{y, p}, t.work(t.rows*vocab, func() error {
			return kernels.Sample(t.on, t.matrix(at.Pointer(), dtype), rows, y.Pointer(), p.Pointer())
		})
	})
	if err != nil {
		return err
	}
	var want []float64
	for r, y := range token {
		temperature := cmp.Or(rows[r].Temperature, 1)
		row := z[r*vocab:][:vocab]
		p, _, err := oracle.TokenLogProb(row, int(y), temperature)
		if err != nil {
			return fmt.Errorf("row %d: token %d: %w", r, y, err)
		}
		want = append(want, p)
		if !drawn(row, int(y), rows[r]) {
			return fmt.Errorf("row %d: token %d is not the token for the random number", r, y)
		}
	}
	compare(t, logp, want)
	return nil
}

// drawn reports whether a token is the one that belongs to the row's random number.
func drawn(z []float64, token int, s kernels.Sampling) bool {
	top, sum, before := math.Inf(-1), 0.0, 0.0
	for _, v := range z {
		top = max(top, v)
	}
	if s.Temperature == 0 {
		return z[token] == top
	}
	for v, x := range z {
		e := math.Exp((x - top) / s.Temperature)
		if sum += e; v < token {
			before += e
		}
	}
	word := mgrpo.Philox4x32([4]uint32{uint32(s.Position), uint32(s.Position >> 32)}, s.Key)
	u := float64((uint64(word[0])<<32|uint64(word[1]))>>11) * 0x1p-53
	return before/sum-floatBound <= u && u <= (before+math.Exp((z[token]-top)/s.Temperature))/sum+floatBound
}
