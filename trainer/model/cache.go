package model

import (
	"context"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/arch"
)

// Cache stores the keys and values of sequences in slots. Each layer has a tensor [slots, KVHeads, length, HeadDim] for
// keys and another for values, in the compute type.
type Cache struct {
	Slots, Length int
	k, v          []*torch.Tensor
	cfg           *arch.Config
	scale         float64
}

// NewCache allocates room for slots sequences of up to length tokens.
func (m *Model) NewCache(ctx context.Context, slots, length int) (*Cache, error) {
	c := &Cache{Slots: slots, Length: length, cfg: &m.Config, scale: m.attentionScale()}
	err := m.Device.Do(ctx, func(s *torch.Scope) error {
		shape := []int64{int64(slots), int64(m.Config.KVHeads), int64(length), int64(m.Config.HeadDim)}
		for range m.layers {
			c.k = append(c.k, s.Keep(s.Zeros(m.Generation.embed.DType(), shape...)))
			c.v = append(c.v, s.Keep(s.Zeros(m.Generation.embed.DType(), shape...)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("model: key-value cache of %d slots × %d tokens: %w", slots, length, err)
	}
	return c, nil
}

func (m *Model) attentionScale() float64 { return 1 / math.Sqrt(float64(m.Config.HeadDim)) }

// Rows maps the rows of one forward pass to cache slots: row r is position Pos[r] of the sequence in Slot[r] and attends
// to its first Length[r] = Pos[r]+1 tokens, or to the last of them that the layer's window holds. Int32 [T] each.
type Rows struct{ Slot, Pos, Length *torch.Tensor }

// At returns the attention of a pass that appends rows to the cache and attends to all earlier positions.
func (c *Cache) At(r Rows) Attention { return cachedAttention{c, r} }

type cachedAttention struct {
	c    *Cache
	rows Rows
}

func (a cachedAttention) Attend(layer int, q, k, v *torch.Tensor) *torch.Tensor {
	torch.CacheWrite(a.c.k[layer], k, a.rows.Slot, a.rows.Pos)
	torch.CacheWrite(a.c.v[layer], v, a.rows.Slot, a.rows.Pos)
	return torch.AttentionCached(q, a.c.k[layer], a.c.v[layer], a.rows.Slot, a.rows.Length, a.c.scale, a.c.cfg.Window(layer))
}

// Copy copies the keys and values of the first n tokens of slot `from` to slot `to`.
func (c *Cache) Copy(from, to, n int) {
	for _, layer := range [][]*torch.Tensor{c.k, c.v} {
		for _, t := range layer {
			src := t.Narrow(0, int64(from), 1).Narrow(2, 0, int64(n))
			t.Narrow(0, int64(to), 1).Narrow(2, 0, int64(n)).CopyFrom(src)
		}
	}
}

// Close frees the cache.
func (c *Cache) Close(ctx context.Context, dev *torch.Device) error {
	return dev.Do(ctx, func(*torch.Scope) error {
		for i := range c.k {
			c.k[i].Drop()
			c.v[i].Drop()
		}
		return nil
	})
}
