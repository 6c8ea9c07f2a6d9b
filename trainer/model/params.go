package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Params is the set of trained parameters of a model. Learners, snapshots and checkpoints access no other weights. It may
// hold fewer values than the model's weights or a checkpoint's tensors, and its memory may differ from the memory that the
// model reads.
type Params interface {
	// Numel returns the number of values, which is the length of a whole flat buffer. The buffers of one rank may hold only
	// its share.
	Numel() int64
	// Leaves returns the tensors into which autograd accumulates.
	Leaves() []Param
	// Master returns the buffer that the optimizer updates: [Numel], or this rank's share of the elements (Options.Size).
	Master() *Buffer
	// Read copies the values of Master that begin at element `from` to dst. It fails if Master is a share: all ranks must
	// then read together.
	Read(ctx context.Context, from int64, dst []float32) error
	// Half returns the bf16 copy of Master that the optimizer updates in the same pass; nil if there is none.
	Half() *torch.Tensor
	// Publish makes forward passes, including the sampler's, compute with Master and Half. Call it inside Device.Do after
	// every update.
	Publish()
	// Restore fills Master and publishes it. read fills dst with the values that begin at element `from`.
	Restore(ctx context.Context, read func(from int64, dst []float32) error) error
	// Files returns the content of a checkpoint's folder. Trained values are read from a copy of Master, as in Reader.
	Files(ctx context.Context, master func(from int64, dst []float32) error) weights.Files
	// Reader returns a function that reads a whole checkpoint tensor by name as float32. Trained values are read from a
	// copy of Master: master fills dst with the copy's values that begin at element `from`.
	Reader(ctx context.Context, master func(from int64, dst []float32) error) func(name string, dst []float32) error
}

// Param is a trained tensor with the place of its values in the flat buffers. If ranks divide its experts, the tensor holds
// this rank's experts only. Block.Layer is 0 for layers that ForwardBackwardCheckpointed does not report.
type Param struct {
	Leaf *torch.Tensor
	ranks.Block
	Constant bool // no optimizer changes it, and no gradient flows to it
}

// All returns all weights of a model as Params, in the buffers that the model reads. For a model without a Master the
// result is empty, since nothing can train it.
func All(m *Model) Params {
	if m.Master == nil {
		return frozenParams{m}
	}
	return allParams{m}
}

type allParams struct{ m *Model }

func (p allParams) Numel() int64        { return p.m.Layout.Numel }
func (p allParams) Master() *Buffer     { return p.m.Master }
func (p allParams) Half() *torch.Tensor { return p.m.Half }

func (p allParams) Publish() {
	WeightsChanged(p.m)
	p.m.widenVectors() // all other leaves are views of these buffers
}

func (p allParams) Read(ctx context.Context, from int64, dst []float32) error {
	if p.m.sharded() {
		return fmt.Errorf("model: this rank holds a share of the fp32 weights (%d of %d) and cannot read all of them alone: all ranks must read together",
			p.m.Master.Numel(), p.Numel())
	}
	return p.m.Master.Read(ctx, from, dst)
}

func (p allParams) Restore(ctx context.Context, read func(from int64, dst []float32) error) error {
	if err := inPieces(p.Numel(), chunkElements, read, func(from int64, values []float32) error { return p.m.put(ctx, from, values) }); err != nil {
		return err
	}
	return p.m.syncHalf(ctx)
}

func (p allParams) Files(ctx context.Context, master func(from int64, dst []float32) error) weights.Files {
	return p.m.HF(p.Reader(ctx, master))
}

func (p allParams) Leaves() []Param {
	leaves := make([]Param, len(p.m.leaves))
	for i, l := range p.m.Layout.Leaves {
		leaves[i] = Param{p.m.leaves[i], blockOf(l, p.m.Gathered()), l.Constant()}
	}
	return leaves
}

func (p allParams) Reader(_ context.Context, master func(from int64, dst []float32) error) func(name string, dst []float32) error {
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

// frozenParams is the empty Params of a model that cannot be trained.
type frozenParams struct{ m *Model }

func (p frozenParams) Numel() int64        { return 0 }
func (p frozenParams) Leaves() []Param     { return nil }
func (p frozenParams) Master() *Buffer     { return nil }
func (p frozenParams) Half() *torch.Tensor { return nil }
func (p frozenParams) Publish()            {}

func (p frozenParams) Read(context.Context, int64, []float32) error {
	return errors.New("model: there are no fp32 weights to read")
}

func (p frozenParams) Restore(context.Context, func(from int64, dst []float32) error) error {
	return nil
}

func (p frozenParams) Files(ctx context.Context, _ func(from int64, dst []float32) error) weights.Files {
	return p.m.HF(p.Reader(ctx, nil))
}

// Reader reads tensors in the form in which the model holds them.
func (p frozenParams) Reader(ctx context.Context, _ func(from int64, dst []float32) error) func(name string, dst []float32) error {
	return func(name string, dst []float32) error {
		for i, l := range p.m.Layout.Leaves {
			for _, t := range l.Parts {
				if t.Name == name {
					return p.m.Device.Do(ctx, func(s *torch.Scope) error { p.m.widen(s, i, t, dst); return nil })
				}
			}
		}
		return fmt.Errorf("model: no tensor %s", name)
	}
}
