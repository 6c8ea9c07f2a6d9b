package gotchx_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

func init() { model.SetModuleOpener(openModule) }

func openModule(s *torch.Scope, path string) (model.Module, error) { return gotchx.OpenModule(s, path) }

// load loads the model of a folder; module is its TorchScript module, or "".
func load(t *testing.T, dir, module, device string) (*model.Model, error) {
	t.Helper()
	dev, err := torch.Open(device, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	src, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	m, err := model.Load(context.Background(), dev, src, model.Options{Compute: torch.Float32, Module: module})
	if err == nil {
		t.Cleanup(func() { m.Close(context.Background()) })
	}
	return m, err
}

// both returns a golden model of a native family, and the same model as a module.
func both(t *testing.T, device string) (native, module *model.Model) {
	t.Helper()
	native, err := load(t, filepath.Dir(golden.File(t, "models", "llama-tied/config.json")), "", device)
	if err != nil {
		t.Fatal(err)
	}
	dir := golden.Module(t, "llama-tied")
	if module, err = load(t, dir, filepath.Join(dir, "policy.pt"), device); err != nil {
		t.Fatal(err)
	}
	return native, module
}

// demonstrations returns sequences of several lengths. The first two begin alike: the native
// family computes this prefix once, and the module twice.
func demonstrations(vocabulary int) (all []*learner.Sequence) {
	for i, n := range []int{19, 13, 6} {
		q := &learner.Sequence{ID: string(rune('a' + i)), TrajectoryID: string(rune('a' + i)), Weight: 1}
		for j := range n {
			token := (7*j + 3) % vocabulary
			if j >= 5 || i == 2 {
				token = (token + 31*i) % vocabulary
			}
			q.Tokens, q.Sampled = append(q.Tokens, int32(token)), append(q.Sampled, j > 2)
		}
		all = append(all, q)
	}
	return all
}

// parameters returns the values of a model's tensors by name.
func parameters(t *testing.T, m *model.Model) map[string][]float32 {
	t.Helper()
	all := map[string][]float32{}
	for _, p := range m.Layout.Tensors() {
		all[p.Name] = make([]float32, p.Numel())
		if err := m.Master.Read(t.Context(), p.Offset, all[p.Name]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// gradients returns the gradient of the demonstrations' loss. An update of AdamW without memory and with a large eps changes a parameter by
// its gradient times lr/eps.
func gradients(t *testing.T, m *model.Model) map[string][]float32 {
	t.Helper()
	const eps = 1e6
	l, err := learner.New(t.Context(), m, model.All(m), learner.Options{Temperature: 1, MicroBatchTokens: 32, Adam: learner.Adam{Eps: eps}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	before := parameters(t, m)
	if _, err := l.ColdStartUpdate(t.Context(), demonstrations(m.Config.VocabSize), eps); err != nil {
		t.Fatal(err)
	}
	after := parameters(t, m)
	for name, values := range after {
		for i := range values {
			values[i] = before[name][i] - values[i]
		}
	}
	return after
}

// The gradient of a module equals the native family's with the same weights.
func TestModuleGradient(t *testing.T) {
	for _, device := range cudatest.Devices(t) {
		native, module := both(t, device)
		want := gradients(t, native)
		got := gradients(t, module)
		if len(got) != len(want) {
			t.Errorf("%d parameters have gradients, want %d", len(got), len(want))
		}
		for name, values := range got {
			far, largest := 0.0, 0.0
			for i, g := range values {
				far, largest = max(far, math.Abs(float64(g)-float64(want[name][i]))), max(largest, math.Abs(float64(g)))
			}
			if far > 1e-5 || largest == 0 {
				t.Errorf("%s, %s: gradients up to %g are %g away from the native family's", device, name, largest, far)
			}
		}
	}
}

// A module trains as the native family: three AdamW steps have the same losses and gradient norms.
func TestModuleTrains(t *testing.T) {
	native, module := both(t, "cpu")
	steps := func(m *model.Model) (values []float64) {
		l, err := learner.New(t.Context(), m, model.All(m), learner.Options{Temperature: 1, MicroBatchTokens: 32, Adam: learner.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(t.Context())
		for range 3 {
			r, err := l.ColdStartUpdate(t.Context(), demonstrations(m.Config.VocabSize), 1e-2)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, r.Values["loss"], r.Values["grad_norm"])
		}
		return values
	}
	want, got := steps(native), steps(module)
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-4*want[i] {
			t.Errorf("losses and norms %v, want %v", got, want)
		}
	}
	if want[4] >= want[0] {
		t.Errorf("the loss does not fall: %v", want)
	}
}

// A module samples the same tokens as the native family with the same weights and keys, also if
// a pass does not have room for all sequences.
func TestModuleSamples(t *testing.T) {
	native, module := both(t, "cpu")
	const sequences = 6
	sample := func(m *model.Model, opt local.Options) (all [sequences]policy.Completion) {
		e, err := local.OpenTenant(t.Context(), m, opt, local.TenantOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(context.Background())
		if want := m == native; e.Deterministic() != want {
			t.Errorf("deterministic: %v", !want)
		}
		var asked sync.WaitGroup
		for i := range all {
			asked.Go(func() {
				r := policy.Request{Tokens: []int32{5, 9, int32(20 + i/2)}, Key: policy.Key{Query: "q", Rollout: i, Root: uint64(i)},
					Sampling: policy.Sampling{Temperature: 1, MaxNew: 8 + i, StopIDs: []int32{2}}}
				var err error
				if all[i], err = e.Generate(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		asked.Wait()
		if s := e.Stats(); m == module && s.ReusedTokens > 0 {
			t.Errorf("%+v: %d tokens are reused, but a module caches nothing", opt, s.ReusedTokens)
		}
		return all
	}
	want := sample(native, local.Options{Slots: sequences})
	for _, opt := range []local.Options{{Slots: sequences}, {Slots: sequences, PassRows: 16}, {Slots: 2, NoPrefixes: true}} {
		for i, got := range sample(module, opt) {
			if !slices.Equal(got.Tokens, want[i].Tokens) || got.Finish != want[i].Finish || len(got.Tokens) == 0 {
				t.Errorf("%+v, sequence %d: %v, %v; want %v, %v", opt, i, got.Tokens, got.Finish, want[i].Tokens, want[i].Finish)
				continue
			}
			for j, lp := range got.LogProbs {
				if math.Abs(float64(lp-want[i].LogProbs[j])) > 1e-5 {
					t.Errorf("%+v, sequence %d, token %d: log-prob %v, want %v", opt, i, j, lp, want[i].LogProbs[j])
				}
			}
		}
	}
}

func TestModuleRefused(t *testing.T) {
	for _, c := range []struct{ name, module, want string }{
		{"no module named", "", "whose forward pass is a program: name it"},
		{"no file", "absent.pt", "no TorchScript module"},
		{"another module", "testdata/scorer.pt", "the module has no parameter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := load(t, golden.Module(t, "llama-tied"), c.module, "cpu"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
	t.Run("checkpointed activations", func(t *testing.T) {
		_, m := both(t, "cpu")
		if _, err := learner.New(t.Context(), m, model.All(m), learner.Options{CheckpointActivations: true, MicroBatchTokens: 64}); err == nil || !strings.Contains(err.Error(), "computed as a whole") {
			t.Error(err)
		}
	})
	t.Run("no gradient history", func(t *testing.T) {
		dir := folderOf(t, "embedding", map[string][]int64{"embedding": {4, 2}, "bias": {2}})
		m, err := load(t, dir, "testdata/detached.pt", "cpu")
		if err != nil {
			t.Fatal(err)
		}
		l, err := learner.New(t.Context(), m, model.All(m), learner.Options{Temperature: 1, MicroBatchTokens: 32})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(t.Context())
		if _, err := l.ColdStartUpdate(t.Context(), demonstrations(4), 1e-3); err == nil || !strings.Contains(err.Error(), "without gradient history") {
			t.Error(err)
		}
	})
	t.Run("hidden size", func(t *testing.T) {
		dir := golden.Module(t, "llama-tied")
		path := filepath.Join(dir, "config.json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		other := strings.NewReplacer(`"head": "model.embed_tokens.weight"`, `"head": "model.layers.0.mlp.down_proj.weight"`,
			`"vocab_size": 384`, `"vocab_size": 48`, `"hidden_size": 48`, `"hidden_size": 128`).Replace(string(text))
		if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := load(t, dir, filepath.Join(dir, "policy.pt"), "cpu")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Logits(t.Context(), []int32{1, 2}, []int{2}); err == nil || !strings.Contains(err.Error(), "want hidden states, float32 [2 128]") {
			t.Error(err)
		}
	})
}
