package learner

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// testTerm is a term of functions. It records its calls.
type testTerm struct {
	loss    func(s *torch.Scope, b term.Batch) (*torch.Tensor, error)
	values  map[string]float64
	failed  error // of Updated
	batches []term.Composition
	updates []term.Update
}

func (t *testTerm) Loss(s *torch.Scope, b term.Batch) (*torch.Tensor, error) {
	t.batches = append(t.batches, b.Composition)
	return t.loss(s, b)
}

func (t *testTerm) Updated(_ *torch.Scope, u term.Update) (map[string]float64, error) {
	t.updates = append(t.updates, u)
	return t.values, t.failed
}

// perToken returns a value of each sequence for each of its tokens.
func perToken(s *torch.Scope, b term.Batch, of func(q term.Sequence) float64) *torch.Tensor {
	var out []float32
	for _, q := range b.Sequences {
		out = append(out, slices.Repeat([]float32{float32(of(q))}, q.To-q.From)...)
	}
	return s.FromFloat32(out, int64(len(out)))
}

// reinforce returns the term c · Σ advantage · log-prob.
func reinforce(c float64) *testTerm {
	return &testTerm{loss: func(s *torch.Scope, b term.Batch) (*torch.Tensor, error) {
		return b.LogProb.Mul(perToken(s, b, func(q term.Sequence) float64 { return q.Advantage })).Sum().Scale(c), nil
	}}
}

// nothing has the gradient 0.
func nothing() *testTerm {
	return &testTerm{loss: func(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) { return b.LogProb.Sum().Scale(0), nil }}
}

// gradientBy returns the gradient of an objective with given derivatives by the log-probs of the trained tokens, of a model without a term.
func gradientBy(t *testing.T, l *Learner, batch []*Sequence, objective func(s *torch.Scope, rows, logp *torch.Tensor) (outputs, grads []*torch.Tensor)) []float32 {
	t.Helper()
	ctx := context.Background()
	if err := l.zeroGrad(ctx); err != nil {
		t.Fatal(err)
	}
	err := l.model.Device.Do(ctx, func(s *torch.Scope) error {
		b := packWhole(s, batch)
		l.model.ForwardBackward(s, b.in, func(hidden *torch.Tensor) ([]*torch.Tensor, []*torch.Tensor) {
			rows := hidden.IndexSelect(0, b.source)
			logp, _ := l.head(l.model, rows, b)
			return objective(s, rows, logp)
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return readFlat(t, l, l.grad.sum)
}

// plus returns a + b.
func plus(a, b []float32) []float32 {
	out := slices.Clone(a)
	for i := range out {
		out[i] += b[i]
	}
	return out
}

// learns returns the sequences that count.
func learns(batch []*Sequence) []*Sequence {
	return slices.DeleteFunc(slices.Clone(byID(batch)), func(q *Sequence) bool { return q.Weight == 0 || len(q.trained()) == 0 })
}

// TestTermOfLogProbs: the gradient is that of the policy loss plus c · Σ advantage · ∇log-prob,
// whose derivatives by the log-probs are known, for every way in which a pass can run.
func TestTermOfLogProbs(t *testing.T) { cudatest.Each(t, testTermOfLogProbs) }

func testTermOfLogProbs(t *testing.T, device string) {
	const c = -0.05
	plain := tinyLearner(t, device, nil)
	batch := tinyBatch(t, plain, 0.6)
	policy, before := gradientOf(t, plain, batch)
	var now []float32 // log-probs
	value := 0.0
	own := gradientBy(t, plain, learns(batch), func(s *torch.Scope, _, logp *torch.Tensor) (outputs, grads []*torch.Tensor) {
		var by []float32
		for _, q := range learns(batch) {
			by = append(by, slices.Repeat([]float32{float32(c * q.Advantage)}, len(q.trained()))...)
		}
		now = make([]float32, len(by))
		logp.Detach().Float32s(now)
		for i, d := range by {
			value += float64(d) * float64(now[i])
		}
		return []*torch.Tensor{logp}, []*torch.Tensor{s.FromFloat32(by, int64(len(by)))}
	})
	want := plus(policy, own)
	if apart(policy, want, 1) < 0.1 {
		t.Fatal("the term does not show in the gradient")
	}
	for name, set := range map[string]func(*Options){
		"one micro-batch":     func(*Options) {},
		"several":             func(o *Options) { o.MicroBatchTokens = 20 },
		"checkpointed":        func(o *Options) { o.CheckpointActivations = true },
		"sequence-wise ratio": func(o *Options) { o.Objective.Ratio = "sequence_geometric" },
	} {
		t.Run(name, func(t *testing.T) {
			added := reinforce(c)
			l := tinyLearner(t, device, func(o *Options) { set(o); o.Term = added })
			want := want
			if l.opt.Objective.Ratio != plain.opt.Objective.Ratio {
				other := tinyLearner(t, device, set)
				of, _ := gradientOf(t, other, batch)
				want = plus(of, own)
			}
			got, r := gradientOf(t, l, batch)
			if d := apart(got, want, 1); !(d < 1e-5) {
				t.Errorf("the gradient is off by %v", d)
			}
			if name != "sequence-wise ratio" {
				closeTo(t, "loss", r.Values["loss"], before.Values["loss"], 2e-6)
			}
			closeTo(t, "term_loss", r.Values["term_loss"], value, 2e-6)
			if m := added.batches[0].Minibatch; m.Sequences != len(learns(batch)) || m.Tokens != len(now) {
				t.Errorf("%+v, want %d sequences and %d tokens", m, len(learns(batch)), len(now))
			}
			if (len(added.batches) > 1) != (name == "several") || len(added.updates) != 1 || added.updates[0].Refused != nil {
				t.Errorf("%d micro-batches, updates %+v", len(added.batches), added.updates)
			}
		})
	}
}

// TestTermOfHidden: a term w·h of the hidden states has the gradient of w by h. A detached one has none, but the head's own parameters do.
func TestTermOfHidden(t *testing.T) { cudatest.Each(t, testTermOfHidden) }

func testTermOfHidden(t *testing.T, device string) {
	var w []float32
	for i := range tinyConfig.Hidden {
		w = append(w, float32(i%5)/50-0.04)
	}
	for _, detached := range []bool{false, true} {
		plain := tinyLearner(t, device, nil)
		batch := tinyBatch(t, plain, 0.6)
		want, _ := gradientOf(t, plain, batch)
		var sum []float32 // Σ h over trained tokens: the gradient of w
		own := gradientBy(t, plain, learns(batch), func(s *torch.Scope, rows, _ *torch.Tensor) (outputs, grads []*torch.Tensor) {
			ones := s.Full(torch.Float32, 1, 1, rows.Size(0))
			sum = make([]float32, tinyConfig.Hidden)
			ones.MatMul(rows.Detach()).Float32s(sum)
			return []*torch.Tensor{rows}, []*torch.Tensor{ones.Transpose(0, 1).MatMul(s.FromFloat32(w, 1, int64(len(w))))}
		})
		if !detached {
			want = plus(want, own)
		}
		var head *torch.Tensor
		l := tinyLearner(t, device, func(o *Options) {
			o.MicroBatchTokens = 20
			o.Term = &testTerm{loss: func(s *torch.Scope, b term.Batch) (*torch.Tensor, error) {
				if head == nil {
					head = s.Keep(s.FromFloat32(w, int64(len(w)), 1))
					head.RequireGrad(true)
				}
				hidden := b.Hidden
				if detached {
					hidden = hidden.Detach()
				}
				return hidden.MatMul(head).Sum(), nil
			}}
		})
		got, _ := gradientOf(t, l, batch)
		if d := apart(got, want, 1); !(d < 1e-5) {
			t.Errorf("detached %v: the gradient is off by %v", detached, d)
		}
		err := l.model.Device.Do(t.Context(), func(*torch.Scope) error {
			grad := make([]float32, len(w))
			head.Grad().Float32s(grad)
			if d := apart(grad, sum, 1); !(d < 1e-5) {
				t.Errorf("detached %v: the gradient of the head is off by %v", detached, d)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestTermIsLinear: with bf16 weights and with adapters the term's gradient is proportional to the term.
func TestTermIsLinear(t *testing.T) {
	hidden := map[string]torch.DType{"bf16": torch.BFloat16, "adapters": torch.Float32}
	for name, open := range map[string]func(added term.Term) *Learner{
		"bf16": func(added term.Term) *Learner {
			return tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, model.Options{Compute: torch.BFloat16}), tinyOptions(func(o *Options) { o.Term = added }))
		},
		"adapters": func(added term.Term) *Learner {
			return adapterLearner(t, tinyOptions(func(o *Options) { o.Term = added }))
		},
	} {
		var grads [3][]float32
		for i := range grads {
			l := open(&testTerm{loss: func(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) {
				if b.Hidden.DType() != hidden[name] {
					t.Errorf("%s: hidden states are %v", name, b.Hidden.DType())
				}
				return b.LogProb.Sum().Add(b.Hidden.Sum()).Scale(float64(i) * 0.01), nil
			}})
			batch := tinyBatch(t, l, 0.6)
			if err := l.Prepare(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			if r, err := l.Update(t.Context(), batch, 0); err != nil || r.Refused != nil {
				t.Fatal(r, err)
			}
			grads[i] = make([]float32, l.State.params.Numel())
			if err := model.BufferOver(l.grad.sum).Read(t.Context(), 0, grads[i]); err != nil {
				t.Fatal(err)
			}
		}
		once, twice := plus(grads[1], negative(grads[0])), plus(grads[2], negative(grads[0]))
		if d := apart(twice, once, 2); !(d < 2e-2) {
			t.Errorf("%s: twice the term gives a gradient that is off by %v", name, d)
		}
		if d := apart(grads[1], grads[0], 1); !(d > 0.05) {
			t.Errorf("%s: the term does not show in the gradient: %v", name, d)
		}
	}
}

func negative(a []float32) []float32 {
	out := slices.Clone(a)
	for i := range out {
		out[i] = -out[i]
	}
	return out
}

// adapterLearner trains a golden adapter.
func adapterLearner(t *testing.T, o Options) *Learner {
	t.Helper()
	_, a, _ := openAdapter(t, golden.Adapters(t)[0], "cpu")
	l, err := New(t.Context(), a.Model(), a, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

// TestTermSees: each sequence that counts reaches the term once, with its values, also with advantage 0.
func TestTermSees(t *testing.T) {
	added := nothing()
	added.values = map[string]float64{"error": 0.25}
	l := tinyLearner(t, "cpu", func(o *Options) { o.MicroBatchTokens, o.Term = 20, added })
	batch := tinyBatch(t, l, 0.6)
	for i, q := range batch {
		q.Reward, q.Step = float64(i)/8, 5
	}
	_, r := gradientOf(t, l, batch)
	if r.Values["term_error"] != 0.25 {
		t.Errorf("values %v", r.Values)
	}
	seen := map[string]term.Sequence{}
	for _, b := range added.batches {
		at := 0
		for _, q := range b.Sequences {
			if q.From != at {
				t.Errorf("%s begins at %d, not %d", q.ID, q.From, at)
			}
			at = q.To
			seen[q.ID] = q
		}
		if b.Minibatch.Step != 5 || b.Minibatch.Update != 0 {
			t.Errorf("%+v", b.Minibatch)
		}
	}
	if len(seen) != len(learns(batch)) {
		t.Errorf("the term saw %d sequences", len(seen))
	}
	zero := false
	for _, q := range learns(batch) {
		got := seen[q.ID]
		want := term.Sequence{ID: q.ID, Trajectory: q.TrajectoryID, From: got.From, To: got.From + len(q.trained()), Group: q.Group, Reward: q.Reward,
			Advantage: q.Advantage, Weight: q.Weight}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		zero = zero || q.Advantage == 0
	}
	if !zero {
		t.Error("no sequence of advantage 0")
	}
}

// TestTermRefused: a term that is not finite changes nothing and is told so, and the next update is made.
func TestTermRefused(t *testing.T) {
	bad := true
	added := nothing()
	finite := added.loss
	added.loss = func(s *torch.Scope, b term.Batch) (*torch.Tensor, error) {
		if bad && len(added.batches) == 2 {
			return b.LogProb.Sum().Scale(math.NaN()), nil
		}
		return finite(s, b)
	}
	l := tinyLearner(t, "cpu", func(o *Options) { o.MicroBatchTokens, o.Term = 20, added })
	batch := tinyBatch(t, l, 0.6)
	if err := l.Prepare(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	before, err := l.State.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Update(t.Context(), batch, 0.1)
	if err != nil || r.Refused == nil || !strings.Contains(r.Refused.Error(), "the program's loss term: mgrpo: non_finite_value: term_loss") {
		t.Fatalf("%+v, %v", r, err)
	}
	after, err := l.State.Digest(t.Context())
	if err != nil || after != before || l.State.Steps() != 0 {
		t.Errorf("the weights have changed, or %v", err)
	}
	if len(added.updates) != 1 || added.updates[0].Refused == nil {
		t.Errorf("the term was told %+v", added.updates)
	}
	bad = false
	if r, err = l.Update(t.Context(), batch, 0.1); err != nil || r.Refused != nil || l.State.Steps() != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if len(added.updates) != 2 || added.updates[1].Refused != nil {
		t.Errorf("the term was told %+v", added.updates)
	}
}

// TestTermErrors: errors of a term end the run, and are named.
func TestTermErrors(t *testing.T) {
	broken := errors.New("broken")
	elsewhere := otherDevicesScalar(t)
	for want, set := range map[string]func(*testTerm){
		"loss term: returned a loss without gradient history": func(a *testTerm) {
			a.loss = func(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) { return b.LogProb.Detach().Sum(), nil }
		},
		"loss term: returned a loss of another device": func(a *testTerm) {
			a.loss = func(*torch.Scope, term.Batch) (*torch.Tensor, error) { return elsewhere, nil }
		},
		"loss term: broken": func(a *testTerm) {
			a.loss = func(*torch.Scope, term.Batch) (*torch.Tensor, error) { return nil, broken }
		},
		"the program's loss term: torch: matmul: ": func(a *testTerm) {
			a.loss = func(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) { return b.Hidden.MatMul(b.LogProb), nil }
		},
		"not a float32 or float64 scalar": func(a *testTerm) {
			a.loss = func(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) { return b.LogProb, nil }
		},
		"the program's loss term: broken": func(a *testTerm) { a.failed = broken },
		"reserved":                        func(a *testTerm) { a.values = map[string]float64{"loss": 1} },
		`a value named "": names have`:    func(a *testTerm) { a.values = map[string]float64{"": 1} },
		`a value named "a b"`:             func(a *testTerm) { a.values = map[string]float64{"a b": 1} },
		`a value named "a/b"`:             func(a *testTerm) { a.values = map[string]float64{"a/b": 1} },
		`a value named "Err"`:             func(a *testTerm) { a.values = map[string]float64{"Err": 1} },
		"the value error is NaN":          func(a *testTerm) { a.values = map[string]float64{"error": math.NaN()} },
		"the value error is -Inf":         func(a *testTerm) { a.values = map[string]float64{"error": math.Inf(-1)} },
	} {
		added := nothing()
		set(added)
		l := tinyLearner(t, "cpu", func(o *Options) { o.Term = added })
		batch := tinyBatch(t, l, 0.6)
		if err := l.Prepare(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if r, err := l.Update(t.Context(), batch, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v", want, r, err)
		}
		if len(added.updates) != 1 {
			t.Errorf("%q: Updated was called %d times", want, len(added.updates))
		}
	}
	m := tinyModel(t, "cpu", 1)
	defer m.Close(context.Background())
	if _, err := New(t.Context(), m, model.All(m), tinyOptions(func(o *Options) { o.Group, o.Term = pair{}, nothing() })); err == nil || !strings.Contains(err.Error(), "one device") {
		t.Errorf("two ranks: %v", err)
	}
}

// otherDevicesScalar returns a tensor of a device that the learner does not have.
func otherDevicesScalar(t *testing.T) (scalar *torch.Tensor) {
	t.Helper()
	other, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	if err := other.Do(t.Context(), func(s *torch.Scope) error { scalar = s.Keep(s.Full(torch.Float32, 1)); return nil }); err != nil {
		t.Fatal(err)
	}
	return scalar
}

// pair claims to be one of two ranks.
type pair struct{ ranks.Solo }

func (pair) Size() int { return 2 }

// TestTermAlone: without an advantage only the term learns. If it has no gradient for the policy, the policy does not change.
func TestTermAlone(t *testing.T) {
	for name, c := range map[string]struct {
		added   *testTerm
		changes bool
	}{"detached": {nothing(), false}, "attached": {&testTerm{loss: func(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) { return b.LogProb.Sum(), nil }}, true}} {
		l := tinyLearner(t, "cpu", func(o *Options) { o.Term = c.added })
		batch := tinyBatch(t, l, 0)
		for _, q := range batch {
			q.Advantage = 0
		}
		if err := l.Prepare(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		r, err := l.Update(t.Context(), batch, 0.1)
		if err != nil || r.Refused != nil || r.Skipped == c.changes || (l.State.Steps() == 1) != c.changes {
			t.Errorf("%s: %+v, %v, %d steps", name, r, err, l.State.Steps())
		}
		if len(c.added.updates) != 1 || c.added.updates[0].Refused != nil {
			t.Errorf("%s: %+v", name, c.added.updates)
		}
	}
}

// TestNoTermChangesNothing: an update without a term has the bits that it had before terms existed: the same path, and no extra pass.
func TestNoTermChangesNothing(t *testing.T) {
	l := tinyLearner(t, "cpu", nil)
	batch := tinyBatch(t, l, 0.6)
	loss, err := l.newMinibatchLoss(byID(batch))
	if err != nil || loss.added != nil || len(loss.observed) != 1 {
		t.Errorf("%+v, %v", loss, err)
	}
	_, r := gradientOf(t, l, batch)
	for name := range r.Values {
		if strings.HasPrefix(name, "term_") {
			t.Errorf("%s is reported", name)
		}
	}
}
