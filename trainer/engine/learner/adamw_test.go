package learner

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Tolerances of the goldens' README for five steps in float32.
const (
	tolLoss  = 3e-4
	tolNorm  = 1e-3 // relative
	tolSum   = 2e-2
	tolSumSq = 5e-4 // relative
)

// adamwCase is the "adamw" part of a model's expected.json.
type adamwCase struct {
	AdamW struct {
		LR, Beta1, Beta2, Eps float64
		WeightDecay           float64   `json:"weight_decay"`
		Clip                  float64   `json:"clip_norm"`
		Steps                 int       `json:"steps"`
		Losses                []float64 `json:"losses"`
		Norms                 []float64 `json:"grad_norms_pre_clip"`
		After                 float64   `json:"loss_after_last_step"`
	} `json:"adamw"`
	Final map[string]struct{ Sum, Sumsq float64 } `json:"checksums_final"`
}

// TestGoldenFiveAdamWSteps trains every golden model for five steps on its batch: losses, gradient norms before
// clipping and the parameters afterwards.
func TestGoldenFiveAdamWSteps(t *testing.T) {
	dirs := golden.Trained(t, golden.InSafetensors(golden.Models(t, arch.Families())))
	for _, dir := range dirs {
		for _, device := range cudatest.Devices(t) {
			t.Run(filepath.Base(dir)+"/"+device, func(t *testing.T) { fiveSteps(t, dir, device, ranks.Solo{}) })
		}
	}
	golden.CountModels("adamw", dirs, 1)
}

func fiveSteps(t *testing.T, dir, device string, g ranks.Group) {
	t.Helper()
	m := loadModel(t, dir, device)
	want := takeSteps(t, g, m, model.All(m), dir, tolLoss, tolNorm)
	final := map[string][]float32{} // by the goldens' names, which may have experts fused
	for _, p := range m.Layout.Tensors() {
		values, name := make([]float32, p.Numel()), p.Name
		if err := m.Master.Read(context.Background(), p.Offset, values); err != nil {
			t.Fatal(err)
		}
		if _, fused := want.Final[p.Fused.Name]; fused {
			name = p.Fused.Name
		}
		final[name] = append(final[name], values...)
	}
	for name, values := range final {
		wantFinal(t, want, name, values, tolSum, tolSumSq)
	}
}

// takeSteps trains for the steps of a case's expected.json, and compares losses and norms.
func takeSteps(t *testing.T, g ranks.Group, m *model.Model, params model.Params, dir string, tolLoss, tolNorm float64) (want adamwCase) {
	t.Helper()
	golden.ReadJSON(t, filepath.Join(dir, "expected.json"), &want)
	ctx, a := context.Background(), want.AdamW
	l, err := New(ctx, m, params, Options{Group: g, Temperature: 1, MicroBatchTokens: 1 << 20, Adam: Adam{a.Beta1, a.Beta2, a.Eps, a.WeightDecay, a.Clip}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx)
	batch, coef := goldenBatch(golden.ReadTensors(t, filepath.Join(dir, "expected.safetensors")))
	for step := range a.Steps {
		loss := lossAndGradient(t, l, batch, coef)
		if !(math.Abs(loss-a.Losses[step]) <= tolLoss) {
			t.Errorf("step %d: loss %v, want %v", step, loss, a.Losses[step])
		}
		norm, err := l.State.apply(ctx, l.grad, a.LR)
		if !(math.Abs(norm-a.Norms[step]) <= tolNorm*a.Norms[step]) {
			t.Errorf("step %d: gradient norm %v, want %v", step, norm, a.Norms[step])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if loss := lossAndGradient(t, l, batch, coef); !(math.Abs(loss-a.After) <= tolLoss) {
		t.Errorf("loss after the last step %v, want %v", loss, a.After)
	}
	return want
}

// wantFinal compares a tensor after the last step.
func wantFinal(t *testing.T, want adamwCase, name string, values []float32, tolSum, tolSumSq float64) {
	t.Helper()
	sum, sumsq := 0.0, 0.0
	for _, v := range values {
		sum += float64(v)
		sumsq += float64(v) * float64(v)
	}
	w, ok := want.Final[name]
	if !ok || math.Abs(sum-w.Sum) > tolSum || math.Abs(sumsq-w.Sumsq) > tolSumSq*w.Sumsq {
		t.Errorf("%s: sum %v, sum of squares %v; want %v, %v", name, sum, sumsq, w.Sum, w.Sumsq)
	}
}

func loadModel(t *testing.T, dir, device string) *model.Model {
	t.Helper()
	ctx := context.Background()
	dev, err := torch.Open(device, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	src, err := weights.Open(golden.Checkpoint(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	m, err := model.Load(ctx, dev, src, model.Options{Compute: torch.Float32})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// goldenBatch returns the rows of a golden batch. Every token of a row is trained except the first; coef has their coefficients in order.
func goldenBatch(want golden.Tensors) (batch []*Sequence, coef []float64) {
	width := want["input_ids"].Shape[1]
	for row, ids := range want.Rows() {
		n := len(ids)
		q := &Sequence{ID: string(rune('a' + row)), Tokens: ids, Sampled: make([]bool, n)}
		for i := range q.Sampled {
			q.Sampled[i] = i > 0
		}
		batch = append(batch, q)
		coef = append(coef, want["coef"].Data[int64(row)*(width-1):][:n-1]...)
	}
	return batch, coef
}

// lossAndGradient returns the goldens' loss, -sum(coef · logp)/N, and leaves its gradient in
// the learner's buffer. Ranks take turns with the rows.
func lossAndGradient(t *testing.T, l *Learner, batch []*Sequence, coef []float64) (loss float64) {
	t.Helper()
	if err := l.zeroGrad(context.Background()); err != nil {
		t.Fatal(err)
	}
	var mine []*Sequence
	var own []float64
	at, n := 0, len(coef)
	for i, q := range batch {
		trained := len(q.trained())
		if i%l.group.Size() == l.group.Rank() {
			mine, own = append(mine, q), append(own, coef[at:][:trained]...)
		}
		at += trained
	}
	err := l.model.Device.Do(context.Background(), func(s *torch.Scope) error {
		if len(mine) == 0 {
			return nil
		}
		b := packer{}.pack(s, mine)
		l.model.ForwardBackward(s, b.in, func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			logp, _ := l.head(l.model, hidden.IndexSelect(0, b.source), b)
			values, d := make([]float32, b.n), make([]float32, b.n)
			logp.Detach().Float32s(values)
			for i, c := range own {
				loss -= c * float64(values[i]) / float64(n)
				d[i] = float32(-c / float64(n))
			}
			return []*torch.Tensor{logp}, []*torch.Tensor{s.FromFloat32(d, int64(b.n))}
		})
		return nil
	})
	losses, err := agree(context.Background(), l.group, loss, err, 0)
	if err != nil {
		t.Fatal(err)
	}
	loss = 0
	for _, part := range losses {
		loss += part
	}
	return loss
}
