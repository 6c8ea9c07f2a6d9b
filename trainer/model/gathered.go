package model

import (
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/ranks"
)

// LayersThere is how many layers of a model that no rank holds whole are gathered at a time: the one that is computed, and the next.
const LayersThere = 2

// gathered is where forward passes read the weights of a model that no rank holds whole: what is in no layer, and LayersThere layers, which all
// ranks bring together before they compute them (ZeRO-3, Rajbhandari et al. 2020). Experts stay where they are.
type gathered struct {
	flat   *torch.Tensor
	places []ranks.Place
}

// Gathered says whether no rank holds the model's layers (Options.Gathered).
func (m *Model) Gathered() bool { return m.gathered.flat != nil }

// Gather brings this rank's share of a layer, counted from 1, to where forward passes read it, in place of the layer that was there; 0 stands for
// what is in none. all has each of its blocks filled in with what the other ranks have of it. Every rank gathers the same, in the same
// order, inside Device.Do.
func (m *Model) Gather(layer int, all func(block *torch.Tensor) error) error {
	return m.EachBlock(layer, func(b ranks.Place, block *torch.Tensor) error {
		for _, p := range m.share.Within(b.Run) {
			block.Narrow(0, p.From-b.From, p.Numel()).CopyFrom(m.Compute.Narrow(0, p.At, p.Numel()))
		}
		return all(block)
	})
}

// EachBlock calls f with the blocks of a layer where forward passes read them, inside Device.Do.
func (m *Model) EachBlock(layer int, f func(b ranks.Place, block *torch.Tensor) error) error {
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

// wantWhole ends what reads layers that are not there.
func (m *Model) wantWhole(op string) {
	if m.Gathered() {
		panic(&torch.Error{Op: op, Message: "this rank has a share of the model's layers, which are gathered one at a time: ForwardByLayer"})
	}
}

// gatheredViews makes the memory of gathered and returns the leaves as views of it, and of this rank's share of the experts.
func (m *Model) gatheredViews(s *torch.Scope) (all []*torch.Tensor) {
	var size int64
	m.gathered.places, size = ranks.Arrange(Blocks(m.Layout, true), LayersThere, ranks.Block.Gathered)
	m.gathered.flat = s.Keep(s.Zeros(m.Compute.DType(), size))
	for _, l := range m.Layout.Leaves {
		var leaf *torch.Tensor
		if l.Experts > 0 {
			leaf = m.ownExperts(l)
		} else {
			leaf = m.gathered.flat.Narrow(0, ranks.At(m.gathered.places, l.Offset), l.Numel()).View(l.Shape...)
		}
		all = append(all, s.Keep(leaf.Detach()))
	}
	return all
}
