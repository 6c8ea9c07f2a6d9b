package arch

import (
	"cmp"
	"slices"
)

// LayerConfig is the part of a Config that may differ between layers.
type LayerConfig struct {
	c     *Config
	index int
}

// Layer returns the configuration of a layer, counted from 0.
func (c *Config) Layer(index int) LayerConfig { return LayerConfig{c, index} }

// Attends reports whether the layer attends.
func (l LayerConfig) Attends() bool { return !l.Convolves() && !l.Recurs() }

// Recurs reports whether the layer has a gated delta rule in place of attention.
func (l LayerConfig) Recurs() bool { return l.c.GatedDelta != nil && l.c.GatedDelta.Layers[l.index] }

// Convolves reports whether the layer has a short convolution in place of attention.
func (l LayerConfig) Convolves() bool { return l.c.ShortConv != nil && l.c.ShortConv.Layers[l.index] }

// Window returns the largest number of keys that a query of the layer sees, including its own; 0 means all keys before it.
func (l LayerConfig) Window() int {
	if l.c.Windows == nil {
		return 0
	}
	return l.c.Windows[l.index]
}

// Rotary returns the rotary embedding of the layer. ok is false for a layer without one.
func (l LayerConfig) Rotary() (r Rotary, ok bool) {
	if l.c.Rope.Without != nil && l.c.Rope.Without[l.index] {
		return Rotary{}, false
	}
	r = Rotary{Theta: l.c.Rope.Theta, Dim: l.HeadDim(), Scaling: l.c.Rope.Scaling}
	if l.c.Rope.Dim > 0 {
		r.Dim = l.c.Rope.Dim
	}
	if l.c.Rope.LocalTheta > 0 && l.Window() > 0 {
		r.Theta, r.Scaling = l.c.Rope.LocalTheta, nil
	}
	return r, true
}

// HeadDim returns the size of a head.
func (l LayerConfig) HeadDim() int {
	if l.Window() == 0 {
		return cmp.Or(l.c.ByLayer.orZero().GlobalHeadDim, l.c.HeadDim)
	}
	return l.c.HeadDim
}

// KVHeads returns the number of heads of keys and values.
func (l LayerConfig) KVHeads() int {
	if l.Window() == 0 {
		return cmp.Or(l.c.ByLayer.orZero().GlobalKVHeads, l.c.KVHeads)
	}
	return l.c.KVHeads
}

// KVWidth returns the number of values of a token's keys.
func (l LayerConfig) KVWidth() int { return l.KVHeads() * l.HeadDim() }

// KVLayer returns the layer whose keys and values the layer attends to. For one of the last SharedKV layers, it is the last earlier layer
// with the same window. For the others, it is the layer itself.
func (l LayerConfig) KVLayer() int {
	first := l.c.Layers - l.c.ByLayer.orZero().SharedKV
	if l.index < first {
		return l.index
	}
	for i := first - 1; i >= 0; i-- {
		if l.c.Layer(i).Window() == l.Window() {
			return i
		}
	}
	return l.index
}

// SharesKV reports whether later layers attend to the layer's keys and values.
func (l LayerConfig) SharesKV() bool {
	for i := l.c.Layers - l.c.ByLayer.orZero().SharedKV; i < l.c.Layers; i++ {
		if i != l.index && l.c.Layer(i).KVLayer() == l.index {
			return true
		}
	}
	return false
}

// KeysAreValues reports whether the layer uses the projection of its keys as values.
func (l LayerConfig) KeysAreValues() bool {
	return l.c.ByLayer.orZero().KeysAreValues && l.Window() == 0 && l.KVLayer() == l.index
}

// CacheWidth returns the number of values that the layer caches for each token: keys and values, or the input of its convolution. It is 0
// for a layer that uses the keys and values of another one, or that has a recurrent state.
func (l LayerConfig) CacheWidth() int {
	switch {
	case l.Convolves():
		return l.c.Hidden
	case l.KVLayer() != l.index || l.Recurs():
		return 0
	}
	return 2 * l.KVWidth()
}

// FFN returns the width of the layer's MLP.
func (l LayerConfig) FFN() int {
	if l.c.ByLayer.orZero().DoubleWide && l.KVLayer() != l.index {
		return 2 * l.c.FFN
	}
	return l.c.FFN
}

// HasExperts reports whether the layer has a mixture of experts.
func (l LayerConfig) HasExperts() bool {
	m := l.c.Mixture
	return m != nil && (l.index+1)%m.Step == 0 && !slices.Contains(m.Dense, l.index)
}
