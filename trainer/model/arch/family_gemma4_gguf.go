package arch

import (
	"cmp"
	"fmt"
)

// gemma4GGUF reads the keys of gemma4 as llama.cpp does. attention.key_length is the head dimension of layers without a window. Layers
// without a projection of values use the projection of keys.
func gemma4GGUF(k *keys, c *Config) {
	k.require("attention.sliding_window", "attention.sliding_window_pattern", "attention.key_length_swa")
	windowsGGUF(k, 0, c)
	k.float("final_logit_softcapping", &c.LogitCap)
	b := &ByLayer{GlobalHeadDim: c.HeadDim}
	k.integer("attention.key_length_swa", &c.HeadDim)
	k.read(b.settings())
	if shape := k.shapes["per_layer_token_embd.weight"]; len(shape) == 2 && shape[0] <= MaxVocab {
		b.InputsVocab = int(shape[0])
	}
	if c.Windows == nil || k.err != nil {
		k.fail("attention.sliding_window_pattern: at least one layer must have a window")
		return
	}
	c.ByLayer = b
	keyValueHeadsGGUF(k, "attention.head_count_kv", c)
	doubleWideGGUF(k, "feed_forward_length", c)
	b.KeysAreValues = keysAreValuesGGUF(k, c)
	refuseSharedGGUF(k, "attention.shared_kv_layers", c)
	c.ByLayer = b.normal(c)
	experts := 0 // beside the dense MLP
	if k.integer("expert_count", &experts); experts > 0 {
		expertsGGUF(k, c)
	}
}

// keyValueHeadsGGUF reads the number of heads of keys in layers with a window and without.
func keyValueHeadsGGUF(k *keys, key string, c *Config) {
	heads := byLayerGGUF(k, key, c.Layers)
	if heads != nil {
		c.KVHeads = 0
	}
	for i, n := range heads {
		of := &c.ByLayer.GlobalKVHeads
		if c.Layer(i).Window() > 0 {
			of = &c.KVHeads
		}
		if *of = cmp.Or(*of, n); *of != n {
			k.fail("%s is %d for layer %d and %d for an earlier one of its type", key, n, i, *of)
		}
	}
}

// doubleWideGGUF reads the width of the MLPs, which is twice as large in layers that share keys and values, or not.
func doubleWideGGUF(k *keys, key string, c *Config) {
	widths := byLayerGGUF(k, key, c.Layers)
	if len(widths) == 0 {
		return
	}
	c.FFN = widths[0]
	c.ByLayer.DoubleWide = widths[len(widths)-1] == 2*c.FFN
	for i, n := range widths {
		if want := c.Layer(i).FFN(); n != want {
			k.fail("%s is %d for layer %d: expected %d", key, n, i, want)
		}
	}
}

// refuseSharedGGUF refuses models in which llama.cpp and transformers share different keys and values. In llama.cpp, the layers that
// share use the last layer with its own keys or, if they have a window, the one before it.
func refuseSharedGGUF(k *keys, key string, c *Config) {
	first := boundedLayers(c.Layers) - c.ByLayer.SharedKV
	for i := max(first, 0); i < first+c.ByLayer.SharedKV; i++ {
		of := first - 1
		if c.Layer(i).Window() > 0 {
			of--
		}
		if c.Layer(i).KVLayer() != of {
			k.fail("%s is %d: supported only if layer %d has a window and layer %d has none", key, c.ByLayer.SharedKV, first-2, first-1)
			return
		}
	}
}

// keysAreValuesGGUF reports whether layers without a window have no projection of values.
func keysAreValuesGGUF(k *keys, c *Config) bool {
	for i := range boundedLayers(c.Layers) {
		if l := c.Layer(i); l.Window() == 0 && l.KVLayer() == i {
			return !stores(k, fmt.Sprintf("blk.%d.attn_v.weight", i))
		}
	}
	return false
}
