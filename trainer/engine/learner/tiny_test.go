package learner

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

const tinyVocab = 17

// tinyModel returns a random decoder of a few thousand parameters. Equal seeds give equal weights.
func tinyModel(t *testing.T, device string, seed uint64) *model.Model {
	t.Helper()
	return tinyModelIn(t, device, seed, model.Options{Compute: torch.Float32})
}

func tinyModelIn(t *testing.T, device string, seed uint64, opt model.Options) *model.Model {
	t.Helper()
	return tinyModelOf(t, tinyConfig, device, seed, opt)
}

var tinyConfig = arch.Config{Family: arch.Qwen3, VocabSize: tinyVocab, Hidden: 16, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 4, FFN: 24,
	RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 64, Tied: true}

// tinyHybrid returns a shape with an attention layer between convolutions.
func tinyHybrid() arch.Config {
	c := tinyConfig
	c.Family, c.Layers = arch.LFM2, 3
	c.ShortConv = &arch.ShortConv{Layers: []bool{true, false, true}, Width: 3, Bias: true}
	return c
}

// tinyRecurrent returns a shape with an attention layer between gated delta rules.
func tinyRecurrent() arch.Config {
	c := tinyConfig
	c.Family, c.Layers, c.HeadDim, c.Rope.Dim = arch.Qwen35, 3, 8, 2
	c.GatedDelta = &arch.GatedDelta{Layers: []bool{true, false, true}, KeyHeads: 1, ValueHeads: 2, KeyDim: 6, ValueDim: 5, Width: 4}
	return c
}

func tinyModelOf(t *testing.T, c arch.Config, device string, seed uint64, opt model.Options) *model.Model {
	t.Helper()
	dev, err := torch.Open(device, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	m, err := model.Random(context.Background(), dev, c, seed, opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tinyLearner trains tinyModel(t, device, 1), with options changed by set.
func tinyLearner(t *testing.T, device string, set func(*Options)) *Learner {
	t.Helper()
	return tinyLearnerOf(t, tinyModel(t, device, 1), tinyOptions(set))
}

func tinyOptions(set func(*Options)) Options {
	o := Options{Objective: mgrpo.DefaultObjective(), Temperature: 0.8, MicroBatchTokens: 1 << 20, HeadRows: 5,
		Adam: Adam{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, WeightDecay: 0.01, Clip: 1}}
	if set != nil {
		set(&o)
	}
	return o
}

func tinyLearnerOf(t *testing.T, m *model.Model, o Options) *Learner {
	t.Helper()
	return tinyLearnerFor(t, m, model.All(m), o)
}

func tinyLearnerFor(t *testing.T, m *model.Model, params model.Params, o Options) *Learner {
	t.Helper()
	l, err := New(context.Background(), m, params, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close(context.Background())
		m.Close(context.Background())
	})
	return l
}

// tinyBatch returns seven trajectories in three groups, with several turns each, different lengths and
// multiplicities. One has advantage 0, one was dropped by alignment, and one trains on none of its tokens.
// Trajectories of a group begin with the same tokens, including sampled ones, and one is the beginning of
// others. The sampler's log-probs differ from the model's by up to spread nats, so that ratios reach both clips.
func tinyBatch(t *testing.T, l *Learner, spread float64) []*Sequence {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 7))
	advantage := []float64{1.2, -0.7, 0, 0.4, -1.1, 0.9, -0.3}
	weight := []float64{1, 2, 1, 3, 1, 0, 1}
	var batch []*Sequence
	for j, n := range []int{9, 14, 6, 21, 11, 8, 5} {
		id := fmt.Sprintf("q%d/%d", j%3, j)
		q := &Sequence{ID: id, TrajectoryID: id, Group: int64(j % 3), Weight: weight[j], Advantage: advantage[j]}
		for i := range n {
			token := int32(rng.IntN(tinyVocab))
			switch {
			case i < 5 && j > 2:
				token = batch[j%3].Tokens[i]
			case i < 8 && j == 3:
				token = batch[0].Tokens[i]
			}
			q.Tokens = append(q.Tokens, token)
			q.Sampled = append(q.Sampled, j != 6 && i > 1 && i%5 > 1)
		}
		batch = append(batch, q)
	}
	err := l.logProbs(context.Background(), l.model, batch, func(q *Sequence, v []float32) { q.Behaviour = v })
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range batch {
		for _, i := range q.trained() {
			q.Behaviour[i] = min(q.Behaviour[i]+float32(spread*(2*rng.Float64()-1)), 0)
		}
	}
	return batch
}

// gradientOf makes an update with rate 0, which does not change the weights, and returns its gradient.
func gradientOf(t *testing.T, l *Learner, batch []*Sequence) (grad []float32, r Report) {
	t.Helper()
	ctx := context.Background()
	if err := l.Prepare(ctx, batch); err != nil {
		t.Fatal(err)
	}
	r, err := l.Update(ctx, batch, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Refused != nil {
		t.Fatal(r.Refused)
	}
	return readFlat(t, l, l.grad.sum), timeless(r)
}

func readFlat(t *testing.T, l *Learner, flat *torch.Tensor) []float32 {
	t.Helper()
	out := make([]float32, l.model.Layout.Numel)
	if err := model.BufferOver(flat).Read(context.Background(), 0, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// apart returns |a·scale - b| / |b|.
func apart(a, b []float32, scale float64) float64 {
	diff, norm := 0.0, 0.0
	for i := range b {
		x := float64(b[i]) * scale
		diff += (float64(a[i]) - x) * (float64(a[i]) - x)
		norm += x * x
	}
	return math.Sqrt(diff / norm)
}

// cutTolerance bounds the relative difference of sums over a batch that is cut into micro-batches in two ways.
func cutTolerance(device string) float64 {
	if cudatest.Real(device) { // other numbers of rows use other kernels
		return 1e-5
	}
	return 1e-6
}

// sameValues reports whether two learners learned the same bits, or, on a real GPU, the same up to the rounding of bf16 products.
func sameValues(device string, got, want []float32) bool {
	if cudatest.Real(device) {
		return len(got) == len(want) && apart(got, want, 1) < 1e-2
	}
	return slices.Equal(got, want)
}

func clone(batch []*Sequence) []*Sequence {
	out := make([]*Sequence, len(batch))
	for i, q := range batch {
		c := *q
		c.Behaviour = slices.Clone(q.Behaviour)
		out[i] = &c
	}
	return out
}
