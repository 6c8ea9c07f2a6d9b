package model

import (
	"context"
	"math"
	"runtime"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Tolerances of the goldens' README for the 135M model in float32.
const (
	tolSmolLogits   = 1e-3
	tolSmolLogProbs = 3e-4
)

type smolPrompt struct {
	Name string  `json:"name"`
	IDs  []int32 `json:"ids"`
	Next struct {
		IDs    []int32   `json:"top20_ids"`
		Logits []float64 `json:"top20_logits"`
	} `json:"next_token"`
	Continuation struct {
		IDs     []int32   `json:"ids"`
		LogP1   []float64 `json:"logprobs_t1_f64"`
		LogP07  []float64 `json:"logprobs_t07_f64"`
		Entropy []float64 `json:"entropy_t1_f64"`
	} `json:"continuation"`
	Greedy struct {
		IDs []int32 `json:"ids"`
	} `json:"greedy"`
}

// smolPrompts returns the expected numbers of the real pretrained model.
func smolPrompts(t *testing.T) []smolPrompt {
	t.Helper()
	var want struct {
		Prompts []smolPrompt `json:"prompts"`
	}
	golden.Read(t, "models", "smollm2-expected.json", &want)
	return want.Prompts
}

// TestGoldenSmolLM2 runs the real pretrained model: next-token logits, log-probs of a given
// continuation, and a greedy continuation through the key-value cache.
func TestGoldenSmolLM2(t *testing.T) {
	prompts := smolPrompts(t)
	cudatest.Each(t, func(t *testing.T, device string) {
		m := openSmolLM2(t, device)
		for _, p := range prompts {
			t.Run(p.Name, func(t *testing.T) { continues(t, m, p) })
		}
	})
	golden.Count("models/smollm2", len(prompts))
}

// continues compares a prompt's next token and two continuations with the expected ones.
func continues(t *testing.T, m *Model, p smolPrompt) {
	cache := newCache(t, m, 1, len(p.IDs)+len(p.Greedy.IDs))
	do(t, m, func(s *torch.Scope) {
		logits := appendRows(s, m, cache, p.IDs, 0)
		for i, id := range p.Next.IDs {
			if got := float64(logits[id]); math.Abs(got-p.Next.Logits[i]) > tolSmolLogits {
				t.Errorf("logit of %d is %v, want %v", id, got, p.Next.Logits[i])
			}
		}
		for i, want := range p.Greedy.IDs {
			if got := argmax(logits); got != want {
				t.Fatalf("greedy token %d is %d, want %d", i, got, want)
			}
			s.Scoped(func() { logits = appendRows(s, m, cache, []int32{want}, len(p.IDs)+i) })
		}
	})
	checkContinuation(t, m, p)
}

func checkContinuation(t *testing.T, m *Model, p smolPrompt) {
	do(t, m, func(s *torch.Scope) {
		all := append(append([]int32{}, p.IDs...), p.Continuation.IDs...)
		pos := make([]int32, len(all))
		for i := range pos {
			pos[i] = int32(i)
		}
		n := int64(len(all))
		hidden := m.Forward(s, Packed{IDs: s.FromInt32(all, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2)})
		k := int64(len(p.Continuation.IDs))
		rows, target := hidden.Narrow(0, int64(len(p.IDs))-1, k).Contiguous(), s.FromInt32(p.Continuation.IDs, k)
		logp, entropy := torch.HeadLogProb(rows, m.Training.Head(), target, 1, 64)
		near(t, "log-probs", floats(logp), p.Continuation.LogP1, tolSmolLogProbs)
		near(t, "entropy", floats(entropy), p.Continuation.Entropy, tolSmolLogProbs)
		logp, _ = torch.HeadLogProb(rows, m.Training.Head(), target, 0.7, 64)
		near(t, "log-probs at 0.7", floats(logp), p.Continuation.LogP07, tolSmolLogProbs)
	})
}

// appendRows feeds tokens at positions from `from` on and returns the last row's logits.
func appendRows(s *torch.Scope, m *Model, c *Cache, ids []int32, from int) []float32 {
	sequence, pos, length := make([]int32, len(ids)), make([]int32, len(ids)), make([]int32, len(ids))
	for i := range ids {
		pos[i], length[i] = int32(from+i), int32(from+i+1)
	}
	n := int64(len(ids))
	r := Rows{Sequence: s.FromInt32(sequence, n), Length: s.FromInt32(length, n)}
	hidden := m.Training.Hidden(s, s.FromInt32(ids, n), Pass{Pos: s.FromInt32(pos, n), Attention: c.At(r)})
	logits := make([]float32, m.Config.VocabSize)
	torch.Logits(hidden.Narrow(0, n-1, 1), m.Training.Head()).Float32s(logits)
	return logits
}

func argmax(v []float32) int32 {
	best := 0
	for i := range v {
		if v[i] > v[best] {
			best = i
		}
	}
	return int32(best)
}

// openSmolLM2 opens the real model, which `make test` provides.
func openSmolLM2(t *testing.T, device string) *Model {
	t.Helper()
	return openSmolLM2With(t, device, Options{Compute: torch.Float32, MaxPosition: 256})
}

func openSmolLM2With(t *testing.T, device string, opt Options) *Model {
	t.Helper()
	path := golden.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf")
	dev, err := torch.Open(device, runtime.NumCPU())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	src, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	m, err := Load(context.Background(), dev, src, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return m
}
