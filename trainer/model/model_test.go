package model

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Tolerances are the ones that the goldens' README suggests (float32, another order of operations).
const (
	tolLogits   = 5e-5
	tolLogProb  = 5e-5
	tolLoss     = 5e-6
	tolGradient = 5e-5 // of the tensor's largest entry
)

// fixture is one golden case: a model with its expected numbers.
type fixture struct {
	m      *Model
	dir    string
	want   golden.Tensors
	expect struct {
		Loss   float64 `json:"loss"`
		NewIDs []int32
	}
	lengths []int64
	length  int64
}

func open(t *testing.T, dir, device string) *fixture {
	t.Helper()
	return openWith(t, golden.Checkpoint(dir), dir, device)
}

// openWith opens a case with the weights of one folder and the expected numbers of another.
func openWith(t *testing.T, checkpoint, dir, device string) *fixture {
	t.Helper()
	ctx := context.Background()
	dev, err := torch.Open(device, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	src, err := weights.Open(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	m, err := Load(ctx, dev, src, Options{Compute: torch.Float32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(ctx) })
	f := &fixture{m: m, dir: dir, want: golden.ReadTensors(t, filepath.Join(dir, "expected.safetensors"))}
	golden.ReadJSON(t, filepath.Join(dir, "expected.json"), &f.expect)
	f.lengths, f.length = f.want["lengths"].Int64s(), f.want["input_ids"].Shape[1]
	return f
}

// tolerance returns golden.Tolerance of the case.
func (f *fixture) tolerance(t *testing.T, what string, usual float64) float64 {
	t.Helper()
	return golden.Tolerance(t, f.dir, what, usual)
}

// packed lays the golden batch's rows end to end.
func (f *fixture) packed(s *torch.Scope) Packed {
	var flat, pos []int32
	cu := []int32{0}
	for _, ids := range f.want.Rows() {
		flat = append(flat, ids...)
		for t := range ids {
			pos = append(pos, int32(t))
		}
		cu = append(cu, int32(len(flat)))
	}
	return Packed{IDs: s.FromInt32(flat, int64(len(flat))), Pos: s.FromInt32(pos, int64(len(pos))), Cu: s.FromInt32(cu, int64(len(cu)))}
}

// unpadded removes the padding of a golden array [B, width, per]. It keeps the first lengths[b]-less entries of each row.
func (f *fixture) unpadded(name string, less, per int64) []float64 {
	a := f.want[name]
	width := a.Shape[1]
	var out []float64
	for row, n := range f.lengths {
		from := int64(row) * width * per
		out = append(out, a.Data[from:from+(n-less)*per]...)
	}
	return out
}

func each(t *testing.T, kind string, test func(t *testing.T, f *fixture)) {
	dirs := golden.InSafetensors(golden.Models(t, arch.Families()))
	for _, dir := range dirs {
		for _, device := range cudatest.Devices(t) {
			t.Run(filepath.Base(dir)+"/"+device, func(t *testing.T) { test(t, open(t, dir, device)) })
		}
	}
	golden.CountModels(kind, dirs, 1)
}

func TestGoldenLogits(t *testing.T) {
	each(t, "logits", func(t *testing.T, f *fixture) {
		do(t, f.m, func(s *torch.Scope) {
			logits := torch.Logits(f.m.Forward(s, f.packed(s)), f.m.Training.Head())
			near(t, "logits", floats(logits), f.unpadded("logits", 0, int64(f.m.Config.VocabSize)), f.tolerance(t, "logits_max_abs", tolLogits))
		})
	})
}

// Computes logits after prefixes of the first row; the lengths of the prefixes are not sorted.
func TestGoldenLogitsAfterPrefixes(t *testing.T) {
	each(t, "prefixes", func(t *testing.T, f *fixture) {
		n, vocab := int(f.lengths[0]), f.m.Config.VocabSize
		ends := []int{n, 1, (n + 1) / 2}
		got, err := f.m.Logits(t.Context(), f.want["input_ids"].Int32s()[:n], ends)
		if err != nil {
			t.Fatal(err)
		}
		want := f.unpadded("logits", 0, int64(vocab))
		for i, end := range ends {
			values := make([]float64, vocab)
			for j, z := range got[i] {
				values[j] = float64(z)
			}
			near(t, fmt.Sprintf("logits after %d tokens", end), values, want[(end-1)*vocab:end*vocab], f.tolerance(t, "logits_max_abs", tolLogits))
		}
	})
}

func TestGoldenLogProbs(t *testing.T) {
	each(t, "logprobs", func(t *testing.T, f *fixture) {
		for _, tau := range []float64{1, 0.7} {
			do(t, f.m, func(s *torch.Scope) {
				logp, entropy := f.logProbs(s, f.m.Forward(s, f.packed(s)), tau)
				near(t, "log-probs", floats(logp), f.unpadded(fmt.Sprintf("logprobs_t%.1f", tau), 1, 1), f.tolerance(t, fmt.Sprintf("logprobs_t%.1f_max_abs", tau), tolLogProb))
				near(t, "entropy", floats(entropy), f.entropies(tau), f.tolerance(t, fmt.Sprintf("entropy_t%.1f_max_abs", tau), tolLogProb))
			})
		}
	})
}

// entropies returns the golden entropies at positions with a next token; the goldens have them at every position.
func (f *fixture) entropies(tau float64) (want []float64) {
	for row, n := range f.lengths {
		want = append(want, f.want[fmt.Sprintf("entropy_t%.1f", tau)].Data[int64(row)*f.length:][:n-1]...)
	}
	return want
}

// logProbs returns the log-probs of all real next tokens.
func (f *fixture) logProbs(s *torch.Scope, hidden *torch.Tensor, tau float64) (logp, entropy *torch.Tensor) {
	ids := f.want["input_ids"].Int32s()
	var source, target []int32
	first := int32(0)
	for row, n := range f.lengths {
		for t := int64(0); t+1 < n; t++ {
			source = append(source, first+int32(t))
			target = append(target, ids[int64(row)*f.length+t+1])
		}
		first += int32(n)
	}
	n := int64(len(source))
	return torch.HeadLogProb(hidden.IndexSelect(0, s.FromInt32(source, n)), f.m.Training.Head(), s.FromInt32(target, n), tau, 16)
}

func TestGoldenGradients(t *testing.T) {
	for _, checkpointed := range []bool{false, true} {
		each(t, fmt.Sprintf("gradients (checkpointed: %v)", checkpointed), func(t *testing.T, f *fixture) {
			loss, got := f.gradient(t, All(f.m), checkpointed)
			if math.Abs(loss-f.expect.Loss) > f.tolerance(t, "loss_abs", tolLoss) {
				t.Errorf("loss %v, want %v", loss, f.expect.Loss)
			}
			for _, p := range f.m.Layout.Tensors() {
				f.wantGradientOf(t, p, got[p.Offset:][:p.Numel()])
			}
		})
	}
}

// gradient returns the goldens' loss on their batch, and its gradient for the trained parameters.
func (f *fixture) gradient(t *testing.T, params Params, checkpointed bool) (loss float64, flat []float64) {
	t.Helper()
	coef := f.unpadded("coef", 1, 1)
	do(t, f.m, func(s *torch.Scope) {
		grad := s.Zeros(torch.Float32, params.Numel())
		for _, p := range params.Leaves() {
			p.Leaf.RequireGrad(true)
			p.Leaf.SetGrad(grad.Narrow(0, p.From, p.Leaf.Numel()).View(p.Leaf.Shape()...))
		}
		run := f.m.ForwardBackward
		if checkpointed {
			run = func(s *torch.Scope, in Packed, lossOf LossFunc) {
				_ = f.m.ForwardBackwardCheckpointed(s, in, lossOf, untold)
			}
		}
		run(s, f.packed(s), func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			logp, _ := f.logProbs(s, hidden, 1)
			values, d := floats(logp.Detach()), make([]float32, len(coef))
			for i, c := range coef {
				loss -= c * values[i] / float64(len(coef))
				d[i] = float32(-c / float64(len(coef)))
			}
			return []*torch.Tensor{logp}, []*torch.Tensor{s.FromFloat32(d, int64(len(d)))}
		})
		flat = floats(grad)
	})
	return loss, flat
}

// wantGradient compares the gradient of a tensor with the golden one.
func (f *fixture) wantGradient(t *testing.T, name string, got []float64) {
	t.Helper()
	published, ok := golden.Published(name, func(name string) bool { return f.want["grad."+name].Shape != nil })
	if !ok && golden.Untrained(t, f.dir, name) {
		for _, v := range got {
			if v != 0 {
				t.Errorf("%s has the gradient %v although it is not trained", name, v)
			}
		}
		return
	}
	if !ok {
		t.Fatalf("no golden gradient for %s", name)
	}
	f.nearGradient(t, name, got, f.want["grad."+published])
}

// wantGradientOf calls wantGradient for a tensor of a checkpoint, which the goldens may have as a part of fused experts.
func (f *fixture) wantGradientOf(t *testing.T, p arch.Tensor, got []float64) {
	t.Helper()
	all, fused := golden.Published(p.Fused.Name, func(name string) bool { return p.Fused.Name != "" && f.want["grad."+name].Shape != nil })
	if !fused {
		f.wantGradient(t, p.Name, got)
		return
	}
	rows, cols := p.Shape[0], p.Numel()/p.Shape[0]
	part := make([]float64, len(got))
	for i := range part {
		matrix, row, col := p.Index*p.Fused.Rows*cols, p.Fused.Row+int64(i)/cols*p.Fused.Step, int64(i)%cols
		at := matrix + row*cols + col
		if p.Fused.Transposed {
			at = matrix + col*p.Fused.Rows + row
		}
		part[i] = f.want["grad."+all].Data[at]
	}
	if rows == 0 || len(got) != int(p.Numel()) {
		t.Fatalf("%d values of %s", len(got), p.Name)
	}
	f.nearGradient(t, p.Name, got, golden.Tensor{Data: part})
}

func (f *fixture) nearGradient(t *testing.T, name string, got []float64, want golden.Tensor) {
	t.Helper()
	largest := 0.0
	for _, v := range want.Data {
		largest = max(largest, math.Abs(v))
	}
	near(t, "gradient of "+name, got, want.Data, f.tolerance(t, "grad_max_rel_to_tensor_max", tolGradient)*largest)
}

// TestGoldenCachedRows decodes the first row token by token and as one prompt, and compares
// both with the packed pass. On a CPU, both ways through the cache must agree bit for bit.
func TestGoldenCachedRows(t *testing.T) {
	each(t, "cached", func(t *testing.T, f *fixture) {
		ids, n := f.want["input_ids"].Int32s(), int(f.lengths[0])
		cache := newCache(t, f.m, 2, n)
		do(t, f.m, func(s *torch.Scope) {
			step := func(sequence, from, to int) []float64 {
				rows, pos := make([]int32, 0, n), make([]int32, 0, n)
				length := make([]int32, 0, n)
				for p := from; p < to; p++ {
					rows, pos, length = append(rows, int32(sequence)), append(pos, int32(p)), append(length, int32(p+1))
				}
				k := int64(to - from)
				r := Rows{Sequence: s.FromInt32(rows, k), Length: s.FromInt32(length, k), State: s.FromInt32(rows, k)}
				h := f.m.Training.Hidden(s, s.FromInt32(ids[from:to], k), Pass{Pos: s.FromInt32(pos, k), Attention: cache.At(r)})
				return floats(torch.Logits(h, f.m.Training.Head()))
			}
			prompt := step(0, 0, n)
			var decoded []float64
			for p := range n {
				decoded = append(decoded, step(1, p, p+1)...)
			}
			alike := 0.0
			if f.m.Device.IsCUDA() { // prompts use another kernel on a GPU
				alike = tolLogits
			}
			near(t, "token by token compared with one prompt", decoded, prompt, alike)
			near(t, "logits", prompt, f.want["logits"].Data[:len(prompt)], f.tolerance(t, "logits_max_abs", tolLogits))
		})
	})
}

// newCache returns a cache for a number of sequences and tokens. The blocks of a sequence are not in order.
func newCache(t *testing.T, m *Model, sequences, tokens int) *Cache {
	t.Helper()
	groups, each := m.Config.CacheGroups(), arch.CacheBlocks(tokens)
	blocks := make([]int, len(groups))
	for g := range blocks {
		blocks[g] = sequences * each
	}
	cache, err := m.NewCache(context.Background(), CacheSize{Blocks: blocks, Sequences: sequences, Length: tokens, States: sequences})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close(context.Background(), m.Device) })
	do(t, m, func(s *torch.Scope) {
		var places, blocks []int32
		for g := range groups {
			for q := range sequences {
				for i := range each {
					places, blocks = append(places, cache.Place(g, q, i)), append(blocks, int32((each-1-i)*sequences+q))
				}
			}
		}
		n := int64(len(places))
		cache.List(s.FromInt32(places, n), s.FromInt32(blocks, n))
	})
	return cache
}

func do(t *testing.T, m *Model, f func(s *torch.Scope)) {
	t.Helper()
	if err := m.Device.Do(context.Background(), func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

func floats(x *torch.Tensor) []float64 {
	v := make([]float32, x.Numel())
	x.Float32s(v)
	out := make([]float64, len(v))
	for i, f := range v {
		out[i] = float64(f)
	}
	return out
}

func near(t *testing.T, what string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= tol) {
			t.Fatalf("%s: [%d] = %v, want %v (tolerance %g)", what, i, got[i], want[i], tol)
		}
	}
}

// untold has callbacks that allow each layer to run.
var untold = Layers{Before: func(int) error { return nil }, After: func(int) error { return nil }}
