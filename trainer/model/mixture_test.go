package model

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// eachMixture runs a test on the golden models with experts and with expected tensors of this kind.
func eachMixture(t *testing.T, kind string, test func(t *testing.T, f *fixture)) {
	var dirs []string
	for _, dir := range golden.Computed(golden.InSafetensors(golden.Models(t, arch.Families()))) {
		if src, err := weights.Open(golden.Checkpoint(dir)); err == nil {
			if cfg := src.Config(); cfg.Mixture != nil && hasExpected(t, dir, kind, cfg) {
				dirs = append(dirs, dir)
			}
			src.Close()
		}
	}
	if len(dirs) == 0 {
		t.Skip("golden: mixtures of experts with expected " + kind + ": absent")
	}
	for _, dir := range dirs {
		for _, device := range cudatest.Devices(t) {
			t.Run(filepath.Base(dir)+"/"+device, func(t *testing.T) { test(t, open(t, dir, device)) })
		}
	}
	golden.CountModels(kind, dirs, 1)
}

// forwardRoutes makes a forward pass over the golden batch and returns the chosen experts as int32 [L, T, k], too.
func (f *fixture) forwardRoutes(s *torch.Scope, routes *Routes) (hidden *torch.Tensor, chosen []int32) {
	in := f.packed(s)
	in.Routes = routes
	cfg := &f.m.Config
	routes.Chosen = s.Empty(torch.Int32, int64(cfg.RoutedLayers()), in.IDs.Size(0), int64(cfg.Mixture.PerToken))
	hidden = f.m.Forward(s, in)
	chosen = make([]int32, routes.Chosen.Numel())
	routes.Chosen.Int32s(chosen)
	return hidden, chosen
}

// wantExperts returns experts.L of every layer with experts, in the order of Routes.
func (f *fixture) wantExperts() (all []float64) {
	for i := range f.m.Config.Layers {
		if f.m.Config.Layer(i).HasExperts() {
			all = append(all, f.unpadded(fmt.Sprintf("experts.%d", i), 0, int64(f.m.Config.Mixture.PerToken))...)
		}
	}
	return all
}

// hasExpected reports whether a case has expected tensors of a kind, such as experts.0, for the
// layers with experts. If not, it prints that they are absent.
func hasExpected(t *testing.T, dir, kind string, cfg arch.Config) bool {
	t.Helper()
	want := golden.ReadTensors(t, filepath.Join(dir, "expected.safetensors"))
	for i := range cfg.Layers {
		if _, there := want[fmt.Sprintf("%s.%d", kind, i)]; !there && cfg.Layer(i).HasExperts() {
			fmt.Printf("golden: %s: %s.%d is absent\n", filepath.Base(dir), kind, i)
			return false
		}
	}
	return true
}

func asFloats(v []int32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// Every row has the experts of the goldens, in their order. If they are replayed in the same
// pass, nothing changes; if other experts are given, the pass uses and counts them.
func TestGoldenRoutes(t *testing.T) {
	eachMixture(t, "experts", func(t *testing.T, f *fixture) {
		do(t, f.m, func(s *torch.Scope) {
			free, chosen := f.forwardRoutes(s, &Routes{})
			near(t, "experts", asFloats(chosen), f.wantExperts(), 0)

			layers, k := int64(f.m.Config.RoutedLayers()), int64(f.m.Config.Mixture.PerToken)
			rows := int64(len(chosen)) / layers / k
			give := func(experts []int32) *Routes {
				return &Routes{Given: s.FromInt32(experts, layers, rows, k), Differs: s.Empty(torch.Int32, layers, rows)}
			}
			differing := func(r *Routes) (n int32) {
				each := make([]int32, r.Differs.Numel())
				r.Differs.Int32s(each)
				for _, d := range each {
					n += d
				}
				return n
			}
			same := give(chosen)
			replayed, _ := f.forwardRoutes(s, same)
			near(t, "replayed", floats(replayed), floats(free), 0)
			if n := differing(same); n != 0 {
				t.Errorf("%d choices differ from themselves", n)
			}

			// Row 3 of the first layer gets another expert, and row 4 is free.
			other := append([]int32{}, chosen...)
			taken := map[int32]bool{}
			for _, e := range other[3*k : 4*k] {
				taken[e] = true
			}
			for e := range int32(f.m.Config.Mixture.Experts) {
				if !taken[e] {
					other[3*k] = e
				}
			}
			other[4*k] = -1
			forced := give(other)
			if _, got := f.forwardRoutes(s, forced); got[3*k] != other[3*k] || got[4*k] != chosen[4*k] || differing(forced) < 1 {
				t.Errorf("rows 3 and 4 used the experts %v, given %v; %d differ", got[3*k:5*k], other[3*k:5*k], differing(forced))
			}
		})
	})
}

// logSoftmax replaces the logits of each row of experts by their log-softmax; a log-softmax
// stays the same. Some goldens for Gemma 4 have logits and some have their log-softmax.
func logSoftmax(logits []float64, experts int) []float64 {
	for row := range slices.Chunk(logits, experts) {
		sum := 0.0
		for _, z := range row {
			sum += math.Exp(z)
		}
		for i := range row {
			row[i] -= math.Log(sum)
		}
	}
	return logits
}

// The router's logits and the experts' weights of every layer equal the goldens.
func TestGoldenRouterLogits(t *testing.T) {
	eachMixture(t, "router_logits", func(t *testing.T, f *fixture) {
		do(t, f.m, func(s *torch.Scope) {
			in := f.packed(s)
			pass, x := in.pass(&f.m.Config), f.m.Training.embedded(in.IDs)
			for i := range f.m.Training.layers {
				l := &f.m.Training.layers[i]
				sum, h := l.attended(i, x, f.m.Training.normOf(x, i), pass)
				x = f.m.Training.block(i, x, pass)
				if l.mixture == nil {
					continue
				}
				m := l.mixture
				if m.parallel != nil {
					h = m.parallel.routerInput(&f.m.Config, sum)
				}
				logits := floats(m.logits(h))
				_, weight := m.route(h, nil)
				experts, k := int64(f.m.Config.Mixture.Experts), int64(m.perToken)
				want := f.unpadded(fmt.Sprintf("router_logits.%d", i), 0, experts)
				if m.parallel != nil {
					logits, want = logSoftmax(logits, int(experts)), logSoftmax(want, int(experts))
				}
				near(t, fmt.Sprint("router logits of layer ", i), logits, want, f.tolerance(t, "logits_max_abs", tolLogits))
				if _, known := f.want[fmt.Sprintf("expert_weights.%d", i)]; !known {
					continue
				}
				near(t, fmt.Sprint("expert weights of layer ", i), floats(weight), f.unpadded(fmt.Sprintf("expert_weights.%d", i), 0, k), tolLogits)
			}
		})
	})
}
