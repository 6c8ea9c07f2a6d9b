package model

import (
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// ResidentLayers is the number of layers that are gathered at a time if no rank holds the whole model: the layer that is being
// computed and the next.
const ResidentLayers = 2

// gatheredWeights is the memory from which forward passes read weights if no rank holds the whole model. It holds the weights
// outside layers and ResidentLayers layers. All ranks gather a layer together before they compute it (ZeRO-3, Rajbhandari et
// al. 2020). Experts are not gathered.
type gatheredWeights struct {
	flat   *torch.Tensor
	places []ranks.Placement
}

// Gathered reports whether the layers are divided among ranks, so that no rank holds them all (Options.Gathered).
func (m *Model) Gathered() bool { return m.gathered.flat != nil }

// Gather copies this rank's share of a layer, counted from 1, to the memory that forward passes read, and replaces the
// layer that was there. Layer 0 stands for the weights outside layers. Gather then calls all for each block of the layer;
// all must fill in the other ranks' shares. Every rank must gather the same layers in the same order, inside Device.Do.
func (m *Model) Gather(layer int, all func(block *torch.Tensor) error) error {
	return m.EachBlock(layer, func(b ranks.Placement, block *torch.Tensor) error {
		for _, p := range m.share.Within(b.Span) {
			block.Narrow(0, p.From-b.From, p.Numel()).CopyFrom(m.Compute.Narrow(0, p.At, p.Numel()))
		}
		return all(block)
	})
}

// EachBlock calls f with each block of a layer, in the memory that forward passes read. Call it inside Device.Do.
func (m *Model) EachBlock(layer int, f func(b ranks.Placement, block *torch.Tensor) error) error {
	for _, b := range m.gathered.places {
		if b.Layer != layer {
			continue
		}
		if err := f(b, m.gathered.flat.Narrow(0, b.First, b.Room)); err != nil {
			return err
		}
	}
	return nil
}

// wantWhole panics if no rank holds the whole model, because op reads its layers.
func (m *Model) wantWhole(op string) {
	if m.Gathered() {
		panic(&torch.Error{Op: op, Message: "this rank holds only a share of the model's layers: use ForwardByLayer, which gathers them one at a time"})
	}
}

// gather allocates the memory of gatheredWeights. It returns the leaves: views of that memory and, for experts, of own, which holds the
// weights of this rank's share.
func gather(s *torch.Scope, layout *arch.Layout, share ranks.Share, own *torch.Tensor) (g gatheredWeights, leaves []*torch.Tensor) {
	var size int64
	g.places, size = ranks.Arrange(Blocks(layout, true), ResidentLayers, ranks.Block.Gathered)
	g.flat = torch.KeptZeros(s, own.DType(), size)
	for _, l := range layout.Leaves {
		var leaf *torch.Tensor
		if l.Experts > 0 {
			leaf = expertsIn(share, own, l)
		} else {
			leaf = g.flat.Narrow(0, ranks.PlaceOf(g.places, l.Offset), l.Numel()).View(l.Shape...)
		}
		leaves = append(leaves, s.Keep(leaf.Detach()))
	}
	return g, leaves
}

// expertsIn returns the experts of a leaf that are in a share, whose weights are in own.
func expertsIn(share ranks.Share, own *torch.Tensor, l arch.Leaf) *torch.Tensor {
	at := int64(0)
	mine := share.Within(blockOf(l, true).Span)
	if len(mine) > 0 { // there may be fewer experts than ranks
		at = mine[0].At
	}
	shape := slices.Clone(l.Shape)
	shape[0] = mine.Numel() / (l.Numel() / l.Shape[0])
	return own.Narrow(0, at, mine.Numel()).View(shape...)
}
