package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Adapters holds the low-rank adapters of a model, as Params, in a separate flat float32 buffer. The model's own weights are
// not trained. Training and generation add the adapters' outputs to the linear maps and never merge the adapters into
// the weights.
type Adapters struct {
	base    *Model
	adapted *Model // the base's weights, with the adapters
	config  lora.PEFT
	layout  *lora.Layout
	master  *Buffer         // [layout.Numel], on the device
	leaves  []*torch.Tensor // views of it, one per layout.Maps
}

var _ Params = (*Adapters)(nil)

// Adapt makes adapters of a model. layout must belong to config, which is written next to the adapters' values. read sets
// the initial values: it fills dst with the elements of the flat buffer that begin at element `from`.
func Adapt(ctx context.Context, base *Model, config lora.PEFT, layout *lora.Layout, read func(from int64, dst []float32) error) (*Adapters, error) {
	a := &Adapters{base: base, config: config, layout: layout}
	err := base.Device.Do(ctx, func(s *torch.Scope) error {
		a.master = BufferOver(s.Keep(s.Empty(torch.Float32, layout.Numel)))
		maps := map[string]torch.LoRA{}
		for _, m := range layout.Maps {
			leaf := s.Keep(a.master.Tensor.Narrow(0, m.Offset, m.Numel).Detach())
			a.leaves = append(a.leaves, leaf)
			maps[m.Leaf] = torch.LoRA{Values: leaf, Parts: parts(m)}
		}
		a.adapted = base.with(maps)
		return nil
	})
	if err == nil {
		err = a.Restore(ctx, read)
	}
	if err != nil {
		a.Close(ctx)
		return nil, fmt.Errorf("model: adapters of %d parameters: %w", layout.Numel, err)
	}
	return a, nil
}

func parts(m lora.Map) (all []torch.LoRAPart) {
	for _, module := range m.Modules {
		all = append(all, torch.LoRAPart{From: module.Row, N: module.Out, R: int64(module.R), Scale: module.Scale})
	}
	return all
}

// with returns a model that has the same tensors and adds adapters to its linear maps. Do not close it.
func (m *Model) with(adapters map[string]torch.LoRA) *Model {
	adapted := *m
	adapted.adapters = adapters
	adapted.Training = m.decoder(m.leaves, m.leaves, adapters)
	adapted.Generation = m.generation(adapters)
	return &adapted
}

// generation returns a decoder for generation that holds the adapters of several models.
func (m *Model) generation(adapters ...map[string]torch.LoRA) *Decoder {
	if m.module != nil {
		return m.Training
	}
	matrices, rest := m.leaves, m.leaves
	if m.halves != nil {
		matrices, rest = m.halves, m.wide
	}
	return m.decoder(matrices, rest, adapters...)
}

// MultiAdapterDecoder returns a decoder for generation. Each row uses one of several models, whose index is in
// Pass.Adapters. All models must share their weights with m; a nil model stands for m without adapters. Each row's
// result is the result of its model alone, and bit for bit the same if generation is batch invariant.
func (m *Model) MultiAdapterDecoder(models []*Model) (*Decoder, error) {
	adapters := make([]map[string]torch.LoRA, len(models))
	for i, other := range models {
		if other == nil {
			continue
		}
		if &other.leaves[0] != &m.leaves[0] {
			return nil, fmt.Errorf("model: model %d does not share its weights with the others, so they cannot generate together", i)
		}
		adapters[i] = other.adapters
	}
	return m.generation(adapters...), nil
}

// adaptersOf returns the adapters of one map, indexed by model, or nil if no model adapts this map.
func adaptersOf(models []map[string]torch.LoRA, leaf string) (all []torch.LoRA) {
	for i, adapters := range models {
		if a, ok := adapters[leaf]; ok {
			if all == nil {
				all = make([]torch.LoRA, len(models))
			}
			all[i] = a
		}
	}
	return all
}

// FreshAdapters returns a function that fills in the initial values of adapters, for Adapt. Every B is 0, so the adapters
// change nothing yet. The values of A are uniform in (-1/sqrt(in), 1/sqrt(in)), as in nn.Linear and PEFT (Kaiming with a =
// sqrt(5)); if gaussian is set, they are normal with standard deviation 1/R. The values depend on layout and seed alone.
func FreshAdapters(layout *lora.Layout, seed uint64, gaussian bool) func(from int64, dst []float32) error {
	values := make([]float32, layout.Numel)
	rng := rand.New(rand.NewPCG(seed, 0x6c6f7261)) // second word: "lora"
	for _, m := range layout.Modules() {
		for i := range values[m.A:][:int64(m.R)*m.In] {
			v := (2*rng.Float64() - 1) / math.Sqrt(float64(m.In))
			if gaussian {
				v = rng.NormFloat64() / float64(m.R)
			}
			values[m.A+int64(i)] = float32(v)
		}
	}
	return func(from int64, dst []float32) error { copy(dst, values[from:]); return nil }
}

// Model returns the base with the adapters. It shares the base's weights: call no method on it that changes or closes them.
func (a *Adapters) Model() *Model { return a.adapted }

func (a *Adapters) Numel() int64        { return a.layout.Numel }
func (a *Adapters) Master() *Buffer     { return a.master }
func (a *Adapters) Half() *torch.Tensor { return nil }
func (a *Adapters) Publish()            {} // the decoders read views of Master

func (a *Adapters) Read(ctx context.Context, from int64, dst []float32) error {
	return a.master.Read(ctx, from, dst)
}

// Digest returns a checksum of the adapters and of the model that they adapt.
func (a *Adapters) Digest(ctx context.Context) (uint32, error) {
	sum, err := a.base.Digest(ctx)
	values := make([]float32, a.Numel())
	if err == nil {
		err = a.Read(ctx, 0, values)
	}
	return Checksum(sum, values), err
}

func (a *Adapters) Restore(ctx context.Context, read func(from int64, dst []float32) error) error {
	return a.master.Fill(ctx, 0, a.Numel(), read)
}

func (a *Adapters) Files(_ context.Context, master func(from int64, dst []float32) error) weights.Files {
	return weights.PEFT{Config: a.config, Layout: a.layout, Base: a.base.Config, Read: master}
}

func (a *Adapters) Leaves() []Param {
	leaves := make([]Param, len(a.leaves))
	for i, m := range a.layout.Maps {
		leaves[i] = Param{Leaf: a.leaves[i], Block: ranks.Block{Span: ranks.Span{From: m.Offset, To: m.Offset + m.Numel}}}
	}
	return leaves
}

// Close frees the adapters but not the base.
func (a *Adapters) Close(ctx context.Context) error {
	return a.base.Device.Do(ctx, func(*torch.Scope) error {
		for _, t := range a.leaves {
			t.Drop()
		}
		return a.master.Drop()
	})
}

// Reader returns a function that reads merged tensors: W + Scale·B A, computed in float32.
func (a *Adapters) Reader(ctx context.Context, master func(from int64, dst []float32) error) func(name string, dst []float32) error {
	base := All(a.base).Reader(ctx, func(from int64, dst []float32) error { return a.base.Master.Read(ctx, from, dst) })
	modules := map[string]lora.Module{}
	for _, m := range a.layout.Modules() {
		modules[m.Name+".weight"] = m
	}
	return func(name string, dst []float32) error {
		m, adapted := modules[name]
		if err := base(name, dst); err != nil || !adapted {
			return err
		}
		r := int64(m.R)
		A, B := make([]float32, r*m.In), make([]float32, m.Out*r)
		if err := errors.Join(master(m.A, A), master(m.B, B)); err != nil {
			return err
		}
		return a.base.Device.Do(ctx, func(s *torch.Scope) error {
			w := s.FromFloat32(dst, m.Out, m.In)
			w.AddScaled_(torch.Linear(s.FromFloat32(B, m.Out, r), s.FromFloat32(A, r, m.In).Transpose(0, 1), nil), m.Scale)
			w.Float32s(dst)
			return nil
		})
	}
}
