package learner

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// mixtureLearner trains a tiny mixture of experts.
func mixtureLearner(t *testing.T, device string, o Options) *Learner {
	t.Helper()
	return tinyLearnerOf(t, mixtureModelIn(t, device, 1, 5, model.Options{Compute: torch.Float32}), o)
}

// mixtureModelIn returns a tiny mixture of experts.
func mixtureModelIn(t *testing.T, device string, seed uint64, experts int, opt model.Options) *model.Model {
	t.Helper()
	return tinyModelOf(t, mixtureShape(experts), device, seed, opt)
}

func mixtureShape(experts int) arch.Config {
	return arch.Config{
		Family: arch.Qwen3MoE, VocabSize: tinyVocab, Hidden: 16, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 4, FFN: 24,
		RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 64, Tied: true,
		Mixture: &arch.Mixture{Experts: experts, PerToken: 2, FFN: 12, Normalise: true, Dense: []int{1}, Step: 1},
	}
}

// biasedShape returns a mixture with experts in every layer. The experts have biases, and the attention has sinks.
func biasedShape(experts int) arch.Config {
	c := mixtureShape(experts)
	c.Family, c.AttentionBias, c.Windows = arch.GPTOSS, true, []int{5, 0, 5}
	c.Mixture = &arch.Mixture{Experts: experts, PerToken: 2, FFN: c.FFN, Normalise: true, Step: 1}
	return c
}

// sigmoidShape returns a mixture whose router weights are sigmoids. The first layer is dense, and the last layer is a convolution.
func sigmoidShape(experts int) arch.Config {
	c := mixtureShape(experts)
	c.Family, c.ShortConv = arch.LFM2MoE, &arch.ShortConv{Layers: []bool{true, false, true}, Width: 3}
	c.Mixture = &arch.Mixture{Experts: experts, PerToken: 2, FFN: 12, Normalise: true, Dense: []int{0}, Step: 1, Sigmoid: &arch.SigmoidRouter{Bias: true, Scale: 1.5}}
	return c
}

// TestNoBalanceOfSigmoids: the load-balancing loss is refused for routers that do not compute probabilities.
func TestNoBalanceOfSigmoids(t *testing.T) {
	m := tinyModelOf(t, sigmoidShape(5), "cpu", 1, model.Options{Compute: torch.Float32})
	defer m.Close(context.Background())
	_, err := New(context.Background(), m, model.All(m), mixtureOptions(func(o *Options) { o.RouterAuxCoef = 0.1 }))
	golden.WantError(t, err, "grpo.router_aux_coef", arch.LFM2MoE)
}

func mixtureOptions(set func(*Options)) Options {
	o := tinyOptions(func(o *Options) { o.Replay = true })
	if set != nil {
		set(&o)
	}
	return o
}

// record stores the model's own choice of experts in the sequences' routes, as a sampler does.
func record(t *testing.T, l *Learner, batch []*Sequence) {
	t.Helper()
	c := l.model.Config
	for _, q := range batch {
		err := l.model.Device.Do(context.Background(), func(s *torch.Scope) error {
			b := packer{}.pack(s, []*Sequence{{Tokens: q.Tokens, Sampled: append(make([]bool, len(q.Tokens)-1), true)}})
			layers, k := c.RoutedLayers(), c.Mixture.PerToken
			b.in.Routes = &model.Routes{Chosen: s.Empty(torch.Int32, int64(layers), int64(b.rows), int64(k))}
			l.model.Forward(s, b.in)
			chosen := make([]int32, layers*b.rows*k)
			b.in.Routes.Chosen.Int32s(chosen)
			q.Routes = nil
			for row := range b.rows {
				for layer := range layers {
					for _, e := range chosen[(layer*b.rows+row)*k:][:k] {
						q.Routes = append(q.Routes, uint16(e))
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Replaying the trainer's own choices of experts changes no bit. Other choices and missing ones are counted.
func TestReplay(t *testing.T) {
	for _, c := range []struct {
		checkpoint bool
		shape      arch.Config
	}{{false, mixtureShape(5)}, {true, mixtureShape(5)}, {false, sigmoidShape(5)}, {true, sigmoidShape(5)}} {
		l := tinyLearnerOf(t, tinyModelOf(t, c.shape, "cpu", 1, model.Options{Compute: torch.Float32}), mixtureOptions(func(o *Options) { o.CheckpointActivations = c.checkpoint }))
		batch := tinyBatch(t, l, 0.6)
		free, r := gradientOf(t, l, batch)
		if _, known := r.Values["routing_differs"]; known || r.Values["routing_free"] != 1 {
			t.Errorf("nothing is recorded: %v", r.Values)
		}
		record(t, l, batch)
		replayed, r := gradientOf(t, l, batch)
		if !slices.Equal(free, replayed) || r.Values["routing_differs"] != 0 || r.Values["routing_free"] != 0 {
			t.Errorf("replaying the trainer's own choices changed the gradient by %v; differs %v, free %v", apart(free, replayed, 1), r.Values["routing_differs"], r.Values["routing_free"])
		}

		for _, q := range batch { // replaces one of the two experts in the first layer
			for at := 0; at < len(q.Routes); at += 4 {
				a, b := q.Routes[at], q.Routes[at+1]
				for e := range uint16(5) {
					if e != a && e != b {
						q.Routes[at] = e
					}
				}
			}
		}
		forced, r := gradientOf(t, l, batch)
		if differs := r.Values["routing_differs"]; differs < 0.5 || slices.Equal(free, forced) {
			t.Errorf("other experts in the first of two layers: routing_differs is %v", differs)
		}
		for _, q := range batch {
			q.Stale = true
		}
		again, r := gradientOf(t, l, batch)
		if _, known := r.Values["routing_differs"]; known || !slices.Equal(forced, again) {
			t.Error("stale sequences must replay their experts but must not be compared")
		}
		for _, q := range batch {
			q.Routes = q.Routes[:4]
		}
		if _, r = gradientOf(t, l, batch); !(r.Values["routing_free"] > 0.5 && r.Values["routing_free"] < 1) {
			t.Errorf("only first tokens have recorded experts: routing_free is %v", r.Values["routing_free"])
		}
	}
}

// The old policy's log-probs are computed with the recorded experts, too.
func TestReplayOfRecomputedLogProbs(t *testing.T) {
	l := mixtureLearner(t, "cpu", mixtureOptions(func(o *Options) { o.Recomputed = true }))
	batch := tinyBatch(t, l, 0.6)
	record(t, l, batch)
	for _, q := range batch {
		for i := range q.Routes {
			q.Routes[i] = (q.Routes[i] + 1) % 5
		}
	}
	_, r := gradientOf(t, l, batch)
	const rounding = 1e-5
	closeTo(t, "ratio_min", r.Values["ratio_min"], 1, rounding)
	closeTo(t, "ratio_max", r.Values["ratio_max"], 1, rounding)
}

func TestRoutesAreChecked(t *testing.T) {
	l := mixtureLearner(t, "cpu", mixtureOptions(nil))
	for name, routes := range map[string][]uint16{"no whole token": {1, 2, 3}, "more tokens than there are": make([]uint16, 4*40), "no such expert": {0, 1, 5, 0}} {
		batch := tinyBatch(t, l, 0)
		batch[0].Routes = routes
		if err := l.Prepare(context.Background(), batch); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The load-balancing loss adds a gradient to the routers' that is proportional to its coefficient. Its value is the
// mean over micro-batches, weighted by rows, for any cut of the batch. After initialisation it is near 1, its minimum.
func TestLoadBalancing(t *testing.T) {
	gradient := func(coef float64) ([]float32, Report, *Learner) {
		l := mixtureLearner(t, "cpu", mixtureOptions(func(o *Options) { o.RouterAuxCoef = coef }))
		batch := tinyBatch(t, l, 0.6)
		g, r := gradientOf(t, l, batch)
		return g, r, l
	}
	none, r, _ := gradient(0)
	if _, known := r.Values["router_aux_loss"]; known {
		t.Error("the report has the load-balancing loss although it is off")
	}
	one, r, l := gradient(0.1)
	if aux := r.Values["router_aux_loss"]; !(aux > 0.8 && aux < 2) {
		t.Errorf("loss %v", aux)
	}
	two, _, _ := gradient(0.2)
	changed := false
	for _, leaf := range l.model.Layout.Leaves {
		a, b, c := window(none, leaf), window(one, leaf), window(two, leaf)
		for i := range a {
			first, second := float64(b[i]-a[i]), float64(c[i]-a[i])
			if math.Abs(second-2*first) > 1e-5+1e-3*math.Abs(second) {
				t.Fatalf("%s: coefficient 0.1 adds %g, 0.2 adds %g", leaf.Name, first, second)
			}
			changed = changed || leaf.Name == "layers.0.router" && math.Abs(first) > 1e-4
		}
	}
	if !changed {
		t.Error("the router's gradient did not change")
	}
	for _, name := range []string{"expert_load_max", "expert_entropy", "experts_idle"} {
		if _, known := r.Values[name]; !known {
			t.Errorf("no %s", name)
		}
	}
	if load := r.Values["expert_load_max"]; load < 1 || load > 5 || r.Values["expert_entropy"] > 1 {
		t.Errorf("load %v, entropy %v", load, r.Values["expert_entropy"])
	}
}
