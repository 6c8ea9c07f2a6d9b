package model

import (
	"context"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Cache stores the keys and values of sequences in blocks of arch.CacheBlock tokens. Each layer has a tensor [blocks,
// KVHeads, CacheBlock, HeadDim] for keys and another for values, in the compute type or in bf16. A layer that convolves has one tensor
// [blocks, 1, CacheBlock, Hidden] for the inputs of its convolution, in the compute type. Tables list the blocks of each
// sequence. There is one table for each group of layers, and its address in memory does not change.
type Cache struct {
	k, v   []*torch.Tensor // by layer; nil if the layer uses another layer's (KVLayer). A layer that convolves has only k
	tables *torch.Tensor   // int32 [groups, sequences+1, blocks]; no sequence uses the last row of a group
	table  []*torch.Tensor // one per group, [sequences, blocks]: views of tables
	group  []int           // the group of each layer
	states []*recurrent    // one per layer; nil if it has no recurrent state
	cfg    *arch.Config
	scale  float64
}

// CacheSize is the size of a cache.
type CacheSize struct {
	Blocks    []int // for each of Config.CacheGroups
	Sequences int   // that have rows in the tables
	Length    int   // the largest number of tokens of a sequence
	States    int   // recurrent states; layers without them ignore it
	Half      bool  // keys and values are rounded to bf16; on a GPU they have the compute type in any case
}

// NewCache allocates a cache.
func (m *Model) NewCache(ctx context.Context, size CacheSize) (*Cache, error) {
	sequences, length := size.Sequences, size.Length
	n := m.Config.Layers
	c := &Cache{cfg: &m.Config, scale: m.Config.AttentionScale(), group: make([]int, n), k: make([]*torch.Tensor, n), v: make([]*torch.Tensor, n),
		states: make([]*recurrent, n)}
	groups := m.Config.CacheGroups()
	if entries := len(groups) * (sequences + 1) * arch.CacheBlocks(length); entries > math.MaxInt32 {
		return nil, fmt.Errorf("model: key-value cache for %d sequences of %d tokens: %d blocks do not fit in its tables: lower engine.slots or "+
			"limits.max_tokens", sequences, length, entries)
	}
	err := m.Device.Do(ctx, func(s *torch.Scope) error {
		c.tables = torch.KeptZeros(s, torch.Int32, int64(len(groups)), int64(sequences)+1, int64(arch.CacheBlocks(length)))
		for g, group := range groups {
			for _, layer := range group.Layers {
				c.group[layer] = g
			}
			c.table = append(c.table, s.Keep(c.tables.Select(0, int64(g)).Narrow(0, 0, int64(sequences))))
		}
		for layer, g := range c.group {
			compute := m.Generation.DType()
			zeros := func(t torch.DType, heads, dim int) *torch.Tensor {
				return torch.KeptZeros(s, t, int64(size.Blocks[g]), int64(heads), arch.CacheBlock, int64(dim))
			}
			keys := compute
			if size.Half && !m.Device.IsCUDA() {
				keys = torch.BFloat16
			}
			switch l := m.Config.Layer(layer); {
			case l.Recurs():
				c.states[layer] = newRecurrent(s, m.Config.GatedDelta, compute, size.States)
			case l.Convolves():
				c.k[layer] = zeros(compute, 1, m.Config.Hidden)
			case l.KVLayer() == layer:
				c.k[layer] = zeros(keys, l.KVHeads(), l.HeadDim())
				c.v[layer] = zeros(keys, l.KVHeads(), l.HeadDim())
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("model: key-value cache of %d blocks of %d tokens: %w", size.Blocks, arch.CacheBlock, err)
	}
	return c, nil
}

// Rows maps the rows of one forward pass to the cache. Row r is position Pass.Pos[r] of a sequence. Row Sequence[r] of the
// tables lists the blocks of that sequence. Row r attends to the sequence's first Length[r] = Pos[r]+1 tokens, or to the
// last ones among them that fit in the layer's window. State[r] is the number of the sequence's recurrent state. All are int32 [T].
type Rows struct{ Sequence, Length, State *torch.Tensor }

// At returns the attention of a pass that appends rows to the cache and attends to all earlier positions.
func (c *Cache) At(r Rows) Attention { return cachedAttention{c, r} }

type cachedAttention struct {
	c    *Cache
	rows Rows
}

func (a cachedAttention) Attend(layer int, qkv *torch.Tensor, heads torch.Heads, sinks *torch.Tensor) *torch.Tensor {
	of := a.c.cfg.Layer(layer).KVLayer()
	k, v, table := a.c.k[of], a.c.v[of], a.c.table[a.c.group[of]]
	var q *torch.Tensor
	if of == layer {
		q = heads.Cache(qkv, k, v, table, a.rows.Sequence)
	} else {
		q, _, _ = heads.Split(qkv)
	}
	return torch.AttentionCached(q, k, v, table, a.rows.Sequence, a.rows.Length, a.c.scale, a.c.cfg.Layer(layer).Window(), sinks)
}

// Place returns the index into the tables at which block number `at` of a sequence in a group is listed.
func (c *Cache) Place(group, sequence, at int) int32 {
	return int32((group*int(c.tables.Size(1))+sequence)*int(c.tables.Size(2)) + at)
}

// PaddingPlace returns the index into the tables that padding entries use, since no pass reads it.
func (c *Cache) PaddingPlace() int32 { return c.Place(0, int(c.tables.Size(1))-1, 0) }

// List writes block numbers into the tables at the given places, int32 [n] each. All places must differ, except PaddingPlace,
// and the block written there is 0.
func (c *Cache) List(places, blocks *torch.Tensor) { c.tables.View(-1).IndexCopy_(0, places, blocks) }

// Copy copies one block of all layers of a group to another block.
func (c *Cache) Copy(group int, from, to int64) {
	for layer, g := range c.group {
		if g != group || from == to {
			continue
		}
		for _, cached := range []*torch.Tensor{c.k[layer], c.v[layer]} {
			if cached != nil {
				cached.Narrow(0, to, 1).CopyFrom(cached.Narrow(0, from, 1))
			}
		}
	}
}

// CopyState copies a recurrent state to another one.
func (c *Cache) CopyState(from, to int64) {
	for _, r := range c.states {
		if r != nil && from != to {
			r.states.Narrow(0, to, 1).CopyFrom(r.states.Narrow(0, from, 1))
			r.inputs.Narrow(0, to, 1).CopyFrom(r.inputs.Narrow(0, from, 1))
		}
	}
}

// Close frees the cache.
func (c *Cache) Close(ctx context.Context, dev *torch.Device) error {
	return dev.Do(ctx, func(*torch.Scope) error {
		for _, r := range c.states {
			if r != nil {
				r.states.Drop()
				r.inputs.Drop()
			}
		}
		for _, all := range [][]*torch.Tensor{c.k, c.v, c.table, {c.tables}} {
			for _, t := range all {
				t.Drop()
			}
		}
		return nil
	})
}
