package model

import (
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// headTables holds tensors for torch.Heads. They are kept, and may be nil.
type headTables struct {
	orders map[columns]*torch.Tensor // int32 [columns]
	growth *torch.Tensor             // of queries
	ones   *torch.Tensor             // fp32 [largest head]: the weight of norms of values
}

// columns describes the columns of a layer's product of queries, keys and values.
type columns struct {
	headDim, kvHeads int
	pairs            bool // planes of the rotary embedding are neighbouring dimensions
	keysAreValues    bool // values have no columns
	queriesAlone     bool
}

func columnsOf(cfg *arch.Config, layer int) columns {
	return columns{cfg.HeadDimOf(layer), cfg.KVHeadsOf(layer), cfg.RotaryPairs(), cfg.KeysAreValues(layer), cfg.KVLayer(layer) != layer}
}

func headTablesOf(s *torch.Scope, cfg *arch.Config, positions int) headTables {
	t := headTables{orders: map[columns]*torch.Tensor{}, growth: growthOf(s, cfg, positions)}
	largest := 0
	for i := range cfg.Layers {
		c := columnsOf(cfg, i)
		if _, made := t.orders[c]; !made {
			t.orders[c] = orderOf(s, cfg, c, i)
		}
		largest = max(largest, cfg.HeadDimOf(i))
	}
	if cfg.ValueNorms() {
		t.ones = s.Keep(s.Full(torch.Float32, 1, int64(largest)))
	}
	return t
}

func (t headTables) tensors() []*torch.Tensor {
	return append(slices.Collect(maps.Values(t.orders)), t.growth, t.ones)
}

// orderOf returns an order of the columns of a layer's product, or nil if they stay where they are. The tensor is kept.
//
// If the planes of the rotary embedding are neighbouring dimensions, the order moves the two dimensions of a plane half of the turning
// dimensions apart, as in other families. Queries and keys have the same order, so their products stay the same. If keys are also
// values, their columns come twice. If a layer only has queries, some of their columns stand for a head of keys and a head of values.
// torch.Heads needs both heads, and attention ignores them.
func orderOf(s *torch.Scope, cfg *arch.Config, c columns, layer int) *torch.Tensor {
	if !c.pairs && !c.keysAreValues && !c.queriesAlone {
		return nil
	}
	queries, keys := cfg.Heads*c.headDim, c.kvHeads*c.headDim
	if c.queriesAlone {
		keys = c.headDim
	}
	order := make([]int32, queries+2*keys)
	for i := range order {
		order[i] = int32(i)
		switch {
		case c.queriesAlone && i >= queries:
			order[i] = int32((i - queries) % c.headDim)
		case c.keysAreValues && i >= queries+keys:
			order[i] = int32(i - keys)
		case c.pairs && i < queries+keys:
			order[i] = int32(paired(cfg, i, c.headDim, layer))
		}
	}
	return s.Keep(s.FromInt32(order, int64(len(order))))
}

// paired returns the column that comes to i.
func paired(cfg *arch.Config, i, headDim, layer int) int {
	rotary, _ := cfg.Rotary(layer)
	head, at, half := i/headDim, i%headDim, rotary.Dim/2
	if at >= rotary.Dim {
		return i
	}
	return head*headDim + at%half*2 + at/half
}
