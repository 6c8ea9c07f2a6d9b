package model

import (
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// headTables holds tensors for torch.Heads. They are kept, and may be nil.
type headTables struct {
	orders map[columns]*torch.Tensor   // int32 [columns]
	growth *torch.Tensor               // of queries
	gates  *torch.Tensor               // int32: columns of gates of attention
	ones   map[valueNorm]*torch.Tensor // weights of norms of values
}

// valueNorm is the size of a head and the type of its values.
type valueNorm struct {
	headDim int
	dtype   torch.DType
}

// columns describes the columns of a layer's product of queries, keys and values.
type columns struct {
	headDim, kvHeads int
	pairs            bool // planes of the rotary embedding are neighbouring dimensions
	keysAreValues    bool // values have no columns
	queriesAlone     bool // the layer uses the keys and values of another layer
	gated            bool // a head's queries are followed by its gates
}

func columnsOf(cfg *arch.Config, layer int) columns {
	l := cfg.Layer(layer)
	return columns{l.HeadDim(), l.KVHeads(), cfg.Features().RotaryPairs, l.KeysAreValues(), l.KVLayer() != layer, cfg.GatedAttention()}
}

func headTablesOf(s *torch.Scope, cfg *arch.Config, positions int) headTables {
	t := headTables{orders: map[columns]*torch.Tensor{}, growth: growthOf(s, cfg, positions), ones: map[valueNorm]*torch.Tensor{}}
	if cfg.GatedAttention() {
		gates := make([]int32, cfg.Heads*cfg.HeadDim)
		for i := range gates {
			gates[i] = int32(beforeGates(i, cfg.HeadDim) + cfg.HeadDim)
		}
		t.gates = s.Keep(s.FromInt32(gates, int64(len(gates))))
	}
	for i := range cfg.Layers {
		if !cfg.Layer(i).Attends() {
			continue
		}
		c := columnsOf(cfg, i)
		if _, made := t.orders[c]; !made {
			t.orders[c] = orderOf(s, cfg, c, i)
		}
		if cfg.Features().ValueNorms {
			t.addOnes(s, cfg.Layer(i).HeadDim())
		}
	}
	return t
}

func (t headTables) addOnes(s *torch.Scope, headDim int) {
	for _, dtype := range []torch.DType{torch.Float32, torch.BFloat16} {
		if key := (valueNorm{headDim, dtype}); t.ones[key] == nil {
			t.ones[key] = s.Keep(s.Full(dtype, 1, int64(headDim)))
		}
	}
}

func (t headTables) tensors() []*torch.Tensor {
	return append(slices.AppendSeq(slices.Collect(maps.Values(t.orders)), maps.Values(t.ones)), t.growth, t.gates)
}

// orderOf returns an order of the columns of a layer's product, or nil if they stay where they are. The tensor is kept.
//
// If the planes of the rotary embedding are neighbouring dimensions, the order moves the two dimensions of a plane half of the turning
// dimensions apart, as in other families. Queries and keys have the same order, so their products stay the same. If keys are also
// values, their columns occur twice. If a layer has only queries, torch.Heads still needs a head of keys and a head of values: columns
// of queries take their places, and attention ignores them. If heads of queries are followed by gates, the order leaves out the gates.
func orderOf(s *torch.Scope, cfg *arch.Config, c columns, layer int) *torch.Tensor {
	if !c.pairs && !c.keysAreValues && !c.queriesAlone && !c.gated {
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
		case c.gated && i < queries:
			order[i] = int32(beforeGates(i, c.headDim))
		case c.gated:
			order[i] = int32(i + queries)
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

// beforeGates returns the column of dimension i of the queries, if each head of them is followed by as many gates.
func beforeGates(i, headDim int) int { return i/headDim*2*headDim + i%headDim }

// paired returns the source column of column i.
func paired(cfg *arch.Config, i, headDim, layer int) int {
	rotary, _ := cfg.Layer(layer).Rotary()
	head, at, half := i/headDim, i%headDim, rotary.Dim/2
	if at >= rotary.Dim {
		return i
	}
	return head*headDim + at%half*2 + at/half
}
