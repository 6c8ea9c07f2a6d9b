package model

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/arch"
)

// Params is what training changes of a model. Learners, snapshots and checkpoints know no other weights: what is trained
// need be neither all that the model computes with, nor all that a file has, nor lie where the model reads it.
type Params interface {
	// Numel is the length of the flat buffers: of Master and Half, of the gradient, and of the optimizer's moments.
	Numel() int64
	// Leaves are the tensors into which autograd accumulates.
	Leaves() []Param
	// Master is the buffer that the optimizer updates, fp32 [Numel].
	Master() *torch.Tensor
	// Half is the bf16 copy of Master that the optimizer renews in the same pass, nil where there is none.
	Half() *torch.Tensor
	// Publish makes forward passes, the sampler's too, compute with what Master and Half hold. Call it inside Device.Do
	// after every update.
	Publish()
	// Restore fills Master and makes the model compute with it; read gives its values from element from on.
	Restore(ctx context.Context, read func(from int64, dst []float32) error) error
	// Reader reads a tensor of the model's checkpoint by its name, all of it as float32, with the values that Master has
	// in the copy which master reads from its element from on.
	Reader(ctx context.Context, master func(from int64, dst []float32) error) func(name string, dst []float32) error
}

// Param is a trained tensor and where its values are in the flat buffers.
type Param struct {
	Leaf   *torch.Tensor
	Offset int64
}

// All are all of a model's weights, in the buffers from which it computes.
func All(m *Model) Params { return all{m} }

type all struct{ m *Model }

func (p all) Numel() int64          { return p.m.Layout.Numel }
func (p all) Master() *torch.Tensor { return p.m.Master }
func (p all) Half() *torch.Tensor   { return p.m.Half }
func (p all) Publish()              {} // the model's leaves are views of these buffers

func (p all) Restore(ctx context.Context, read func(from int64, dst []float32) error) error {
	if err := p.m.WriteFlat(ctx, p.m.Master, read); err != nil {
		return err
	}
	return p.m.SyncHalf(ctx)
}

func (p all) Leaves() []Param {
	leaves := make([]Param, len(p.m.leaves))
	for i, l := range p.m.Layout.Leaves {
		leaves[i] = Param{p.m.leaves[i], l.Offset}
	}
	return leaves
}

func (p all) Reader(_ context.Context, master func(from int64, dst []float32) error) func(name string, dst []float32) error {
	at := map[string]arch.Tensor{}
	for _, t := range p.m.Layout.Tensors() {
		at[t.Name] = t
	}
	return func(name string, dst []float32) error {
		t, ok := at[name]
		if !ok {
			return fmt.Errorf("model: no tensor %s", name)
		}
		return master(t.Offset, dst)
	}
}
