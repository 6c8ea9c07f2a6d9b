package learner

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// partialParams trains a few leaves of a model, which are in a buffer of their own. The other leaves do not change.
type partialParams struct {
	m      *model.Model
	leaves []model.Param
	places []arch.Leaf // of leaves in the model's own buffers
	master *model.Buffer
}

// newSome returns parameters with the leaves whose names contain part.
func newSome(t *testing.T, m *model.Model, part string) *partialParams {
	t.Helper()
	p := &partialParams{m: m}
	n := int64(0)
	for i, l := range m.Layout.Leaves {
		if strings.Contains(l.Name, part) {
			p.leaves, p.places = append(p.leaves, model.Param{Leaf: model.All(m).Leaves()[i].Leaf, Block: ranks.Block{Span: ranks.Span{From: n, To: n + l.Numel()}}}), append(p.places, l)
			n += l.Numel()
		}
	}
	inDevice(t, m, func(s *torch.Scope) {
		p.master = model.BufferOver(s.Keep(s.Empty(torch.Float32, n)))
		p.each(func(mine, theirs *torch.Tensor) { mine.CopyFrom(theirs) }, m.Master.Tensor)
	})
	return p
}

func (p *partialParams) Restore(ctx context.Context, read func(from int64, dst []float32) error) error {
	if err := p.master.Fill(ctx, 0, p.Numel(), read); err != nil {
		return err
	}
	return p.m.Device.Do(ctx, func(*torch.Scope) error { p.Publish(); return nil })
}

func (p *partialParams) each(visit func(mine, theirs *torch.Tensor), whole *torch.Tensor) {
	for i, l := range p.places {
		visit(p.master.Tensor.Narrow(0, p.leaves[i].From, l.Numel()), whole.Narrow(0, l.Offset, l.Numel()))
	}
}

func (p *partialParams) Numel() int64          { return p.master.Numel() }
func (p *partialParams) Leaves() []model.Param { return p.leaves }
func (p *partialParams) Master() *model.Buffer { return p.master }
func (p *partialParams) Half() *torch.Tensor   { return nil }

func (p *partialParams) Read(ctx context.Context, from int64, dst []float32) error {
	return p.master.Read(ctx, from, dst)
}

func (p *partialParams) Publish() {
	publish := func(mine, theirs *torch.Tensor) { theirs.CopyFrom(mine) }
	p.each(publish, p.m.Master.Tensor)
	if p.m.Half != nil {
		p.each(publish, p.m.Half)
	}
}

func (p *partialParams) Files(ctx context.Context, master func(from int64, dst []float32) error) weights.Files {
	return weights.HF{Config: p.m.Config, Read: p.Reader(ctx, master)}
}

func (p *partialParams) Reader(ctx context.Context, master func(from int64, dst []float32) error) func(name string, dst []float32) error {
	return func(name string, dst []float32) error {
		for i, l := range p.places {
			for _, t := range l.Parts {
				if t.Name == name {
					return master(p.leaves[i].From+t.Offset-l.Offset, dst)
				}
			}
		}
		return model.All(p.m).Reader(ctx, func(from int64, dst []float32) error {
			return p.m.Master.Read(ctx, from, dst)
		})(name, dst)
	}
}

func inDevice(t *testing.T, m *model.Model, f func(s *torch.Scope)) {
	t.Helper()
	if err := m.Device.Do(context.Background(), func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

// TestTrainedIsNotHeld trains a few leaves that are in a buffer of their own. Without clipping, AdamW treats every value independently,
// so these leaves become bit for bit the same as if the whole model is trained. The other leaves and their bf16 copy do not change.
func TestTrainedIsNotHeld(t *testing.T) {
	for _, compute := range []torch.DType{torch.Float32, torch.BFloat16} {
		for _, checkpointed := range []bool{false, true} {
			set := func(o *Options) { o.Adam.Clip, o.CheckpointActivations = 0, checkpointed }
			options := model.Options{Compute: compute}
			opt := tinyLearner(t, "cpu", set).opt
			before := masterOf(t, tinyModelIn(t, "cpu", 1, options))
			whole := tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, options), opt)
			m := tinyModelIn(t, "cpu", 1, options)
			params := newSome(t, m, "layers.1.")
			part := tinyLearnerFor(t, m, params, opt)
			for _, l := range []*Learner{whole, part} {
				batch := tinyBatch(t, l, 0.3)
				if err := l.Prepare(context.Background(), batch); err != nil {
					t.Fatal(err)
				}
				if r, err := l.Update(context.Background(), batch, 0.01); err != nil || r.Refused != nil {
					t.Fatal(r, err)
				}
			}
			if part.State.m.Numel() != params.Numel() || params.Numel() >= m.Layout.Numel {
				t.Errorf("%d moments for %d trained of %d values", part.State.m.Numel(), params.Numel(), m.Layout.Numel)
			}
			all, got := masterOf(t, whole.model), masterOf(t, m)
			for _, l := range m.Layout.Leaves {
				want := before
				if strings.Contains(l.Name, "layers.1.") {
					want = all
					if slices.Equal(window(all, l), window(before, l)) {
						t.Errorf("%s did not change although the whole model was trained", l.Name)
					}
				}
				if !slices.Equal(window(got, l), window(want, l)) {
					t.Errorf("%v, checkpointed %v: %s differs", compute, checkpointed, l.Name)
				}
			}
			if m.Half != nil {
				wantRounded(t, m)
			}
			wantSaved(t, params, got)
		}
	}
}

func window(flat []float32, l arch.Leaf) []float32 { return flat[l.Offset:][:l.Numel()] }

func masterOf(t *testing.T, m *model.Model) []float32 {
	t.Helper()
	out := make([]float32, m.Layout.Numel)
	inDevice(t, m, func(*torch.Scope) { m.Master.Tensor.Float32s(out) })
	return out
}

// wantSaved checks that a saved file has the trained weights of a copy and the model's other weights.
func wantSaved(t *testing.T, p *partialParams, weights []float32) {
	t.Helper()
	trained := make([]float32, p.Numel())
	inDevice(t, p.m, func(*torch.Scope) { p.master.Tensor.Float32s(trained) })
	read := p.Reader(context.Background(), func(from int64, dst []float32) error { copy(dst, trained[from:]); return nil })
	for _, tensor := range p.m.Layout.Tensors() {
		dst := make([]float32, tensor.Numel())
		if err := read(tensor.Name, dst); err != nil || !slices.Equal(dst, weights[tensor.Offset:][:len(dst)]) {
			t.Errorf("%s would be saved with other values (%v)", tensor.Name, err)
		}
	}
}

// wantRounded checks that the bf16 copy equals the rounded master weights.
func wantRounded(t *testing.T, m *model.Model) {
	t.Helper()
	half, rounded := make([]float32, m.Layout.Numel), make([]float32, m.Layout.Numel)
	inDevice(t, m, func(*torch.Scope) {
		m.Half.Float32s(half)
		m.Master.Tensor.To(torch.BFloat16).Float32s(rounded)
	})
	if !slices.Equal(half, rounded) {
		t.Error("the bf16 copy does not equal the rounded weights")
	}
}
