package model

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Tolerances of the LoRA goldens' README.
const (
	tolMerged      = 1e-4
	tolMergedSum   = 2e-5
	tolMergedSumSq = 1e-6 // relative
)

// loraCase is a golden case of LoRA: a base with an adapter, and its expected numbers.
type loraCase struct {
	*fixture // the model includes the adapter
	base     *Model
	a        *Adapters
	read     *weights.Adapter
	want     struct {
		Modules map[string]struct {
			R     int
			Scale float64
		}
		Count  int64 `json:"adapter_parameter_count"`
		Greedy struct {
			Prompt []int32 `json:"prompt_ids"`
			New    []int32 `json:"new_ids"`
		}
		Initial map[string]checksum `json:"checksums_initial"`
		Merged  map[string]checksum `json:"checksums_merged"`
	}
}

type checksum struct{ Sum, Sumsq float64 }

func eachAdapted(t *testing.T, kind string, test func(t *testing.T, f *loraCase)) {
	dirs := golden.Adapters(t)
	for _, dir := range dirs {
		for _, device := range cudatest.Devices(t) {
			t.Run(filepath.Base(dir)+"/"+device, func(t *testing.T) { test(t, openAdapted(t, dir, device)) })
		}
	}
	golden.Count("lora/"+kind, len(dirs))
}

func openAdapted(t *testing.T, dir, device string) *loraCase {
	t.Helper()
	f := &loraCase{}
	f.fixture = openWith(t, golden.Base(t, dir), dir, device)
	f.base = f.m
	var err error
	if f.read, err = weights.ReadAdapter(dir, f.base.Config); err != nil {
		t.Fatal(err)
	}
	values := f.read.Values
	f.a, err = Adapt(t.Context(), f.base, f.read.Config, f.read.Layout, func(from int64, dst []float32) error { copy(dst, values[from:]); return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.a.Close(context.Background()) })
	f.m = f.a.Model()
	golden.ReadJSON(t, filepath.Join(dir, "expected.json"), &f.want)
	return f
}

func TestGoldenAdaptedModules(t *testing.T) {
	eachAdapted(t, "modules", func(t *testing.T, f *loraCase) {
		modules := f.a.layout.Modules()
		if len(modules) != len(f.want.Modules) || f.a.Numel() != f.want.Count {
			t.Errorf("%d modules of %d parameters, want %d of %d", len(modules), f.a.Numel(), len(f.want.Modules), f.want.Count)
		}
		for _, m := range modules {
			if w, ok := f.want.Modules[m.Name]; !ok || m.R != w.R || math.Abs(m.Scale-w.Scale) > 1e-12 {
				t.Errorf("%s: r %d, scale %v; want %+v", m.Name, m.R, m.Scale, w)
			}
		}
		for _, p := range f.a.layout.Tensors() {
			wantChecksum(t, p.Name, f.read.Values[p.Offset:][:p.Numel()], f.want.Initial[p.Name], 1e-9, 1e-12)
		}
	})
}

func wantChecksum(t *testing.T, name string, values []float32, want checksum, tolSum, tolSumSq float64) {
	t.Helper()
	sum, sumsq := 0.0, 0.0
	for _, v := range values {
		sum += float64(v)
		sumsq += float64(v) * float64(v)
	}
	if !(math.Abs(sum-want.Sum) <= tolSum && math.Abs(sumsq-want.Sumsq) <= tolSumSq*want.Sumsq) {
		t.Errorf("%s: sum %v, sum of squares %v; want %v, %v", name, sum, sumsq, want.Sum, want.Sumsq)
	}
}

func TestGoldenAdaptedLogits(t *testing.T) {
	eachAdapted(t, "logits", func(t *testing.T, f *loraCase) {
		do(t, f.m, func(s *torch.Scope) {
			vocab := int64(f.m.Config.VocabSize)
			for name, m := range map[string]*Model{"logits": f.m, "logits_base": f.base} {
				logits := torch.Logits(m.Forward(s, f.packed(s)), m.Training.Head())
				near(t, name, floats(logits), f.unpadded(name, 0, vocab), tolLogits)
			}
		})
	})
}

func TestGoldenAdaptedLogProbs(t *testing.T) {
	eachAdapted(t, "logprobs", func(t *testing.T, f *loraCase) {
		for _, tau := range []float64{1, 0.7} {
			do(t, f.m, func(s *torch.Scope) {
				logp, entropy := f.logProbs(s, f.m.Forward(s, f.packed(s)), tau)
				near(t, "log-probs", floats(logp), f.unpadded(fmt.Sprintf("logprobs_t%.1f", tau), 1, 1), tolLogProb)
				near(t, "entropy", floats(entropy), f.entropies(tau), tolLogProb)
			})
		}
	})
}

// TestGoldenAdaptedGradients trains only the adapters: weights of the base get no gradient.
func TestGoldenAdaptedGradients(t *testing.T) {
	for _, checkpointed := range []bool{false, true} {
		eachAdapted(t, fmt.Sprintf("gradients (checkpointed: %v)", checkpointed), func(t *testing.T, f *loraCase) {
			loss, got := f.gradient(t, f.a, checkpointed)
			if math.Abs(loss-f.expect.Loss) > tolLoss {
				t.Errorf("loss %v, want %v", loss, f.expect.Loss)
			}
			for _, p := range f.a.layout.Tensors() {
				f.wantGradient(t, p.Name, got[p.Offset:][:p.Numel()])
			}
			do(t, f.m, func(*torch.Scope) {
				for _, p := range All(f.base).Leaves() {
					if p.Leaf.Grad() != nil {
						t.Errorf("a weight of the base with shape %v has a gradient", p.Leaf.Shape())
					}
				}
			})
		})
	}
}

// TestGoldenAdaptedMerge merges the adapters into the weights and computes with the merged base.
func TestGoldenAdaptedMerge(t *testing.T) {
	eachAdapted(t, "merged", func(t *testing.T, f *loraCase) {
		merged := f.a.Reader(t.Context(), func(from int64, dst []float32) error { copy(dst, f.read.Values[from:]); return nil })
		at := map[int64][]float32{}
		for _, p := range f.base.Layout.Tensors() {
			values := make([]float32, p.Numel())
			if err := merged(p.Name, values); err != nil {
				t.Fatal(err)
			}
			tolSum, tolSumSq := 1e-9, 1e-12
			if _, changed := f.want.Modules[strings.TrimSuffix(p.Name, ".weight")]; changed {
				tolSum, tolSumSq = tolMergedSum, tolMergedSumSq
			}
			wantChecksum(t, p.Name, values, f.want.Merged[p.Name], tolSum, tolSumSq)
			at[p.Offset] = values
		}
		for _, p := range f.base.Layout.Tensors() {
			err := f.base.Master.Fill(t.Context(), p.Offset, p.Numel(), func(_ int64, dst []float32) error {
				copy(dst, at[p.Offset])
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		do(t, f.m, func(s *torch.Scope) {
			logits := torch.Logits(f.base.Forward(s, f.packed(s)), f.base.Training.Head())
			near(t, "merged logits", floats(logits), f.unpadded("logits_merged", 0, int64(f.m.Config.VocabSize)), tolMerged)
		})
	})
}

// TestGoldenAdaptedGreedy continues a prompt through the key-value cache, one token at a time.
func TestGoldenAdaptedGreedy(t *testing.T) {
	eachAdapted(t, "greedy", func(t *testing.T, f *loraCase) {
		ids := append([]int32{}, f.want.Greedy.Prompt...)
		prompt, vocab := len(ids), f.m.Config.VocabSize
		cache := newCache(t, f.m, 1, prompt+len(f.want.Greedy.New))
		for i, want := range f.want.Greedy.New {
			from := len(ids) - 1
			if i == 0 {
				from = 0
			}
			do(t, f.m, func(s *torch.Scope) {
				n := int64(len(ids) - from)
				sequence, pos, length := make([]int32, n), make([]int32, n), make([]int32, n)
				for j := range pos {
					pos[j], length[j] = int32(from+j), int32(from+j+1)
				}
				r := Rows{Sequence: s.FromInt32(sequence, n), Length: s.FromInt32(length, n)}
				hidden := f.m.Generation.Hidden(s, s.FromInt32(ids[from:], n), Pass{Pos: s.FromInt32(pos, n), Attention: cache.At(r)})
				logits := floats(torch.Logits(hidden.Narrow(0, n-1, 1), f.m.Generation.Head()))
				near(t, fmt.Sprintf("logits of token %d", i), logits, f.fixture.want["greedy_logits"].Data[i*vocab:][:vocab], tolLogits)
				best := 0
				for j, z := range logits {
					if z > logits[best] {
						best = j
					}
				}
				if int32(best) != want {
					t.Fatalf("token %d is %d, want %d", i, best, want)
				}
				ids = append(ids, want)
			})
		}
	})
}

// TestGoldenFreshAdaptersChangeNothing: in a new adapter every B is 0, and A has the documented distribution.
func TestGoldenFreshAdaptersChangeNothing(t *testing.T) {
	eachAdapted(t, "fresh", func(t *testing.T, f *loraCase) {
		layout := f.a.layout
		if err := f.a.Restore(t.Context(), FreshAdapters(layout, 5, false)); err != nil {
			t.Fatal(err)
		}
		do(t, f.m, func(s *torch.Scope) {
			logits := func(m *Model) []float64 { return floats(torch.Logits(m.Forward(s, f.packed(s)), m.Training.Head())) }
			near(t, "logits", logits(f.m), logits(f.base), 0)
		})
		digests := map[uint32]bool{}
		for _, seed := range []uint64{6, 5} {
			if err := f.a.Restore(t.Context(), FreshAdapters(layout, seed, false)); err != nil {
				t.Fatal(err)
			}
			sum, err := f.a.Digest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			digests[sum] = true
		}
		if len(digests) != 2 {
			t.Error("different adapters have the same digest")
		}
		values := make([]float32, layout.Numel)
		if err := f.a.Master().Read(t.Context(), 0, values); err != nil {
			t.Fatal(err)
		}
		for _, m := range layout.Modules() {
			bound, largest, sumsq := 1/math.Sqrt(float64(m.In)), 0.0, 0.0
			a := values[m.A:][:int64(m.R)*m.In]
			for _, v := range a {
				largest, sumsq = max(largest, math.Abs(float64(v))), sumsq+float64(v)*float64(v)
			}
			if variance := sumsq / float64(len(a)); largest > bound || largest < 0.9*bound || math.Abs(variance/(bound*bound/3)-1) > 0.35 {
				t.Errorf("%s: largest %v, variance %v for a bound of %v", m.Name, largest, variance, bound)
			}
			for _, v := range values[m.B:][:int64(m.R)*m.Out] {
				if v != 0 {
					t.Fatalf("%s: B has %v", m.Name, v)
				}
			}
		}
	})
}
