package arch

import "github.com/mgrpo/mgrpo/trainer/internal/strictjson"

// EXAONE4 is the family of EXAONE 4: norms of heads, and norms after attention and MLP instead of before them. If some layers have a
// window, the other layers have no positions.
const EXAONE4 = "exaone4"

func init() {
	register(&family{
		name:         EXAONE4,
		architecture: "Exaone4ForCausalLM",
		defaults: Config{VocabSize: 102400, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, FFN: 16384, RMSEps: 1e-5, MaxPosition: 2048,
			Tokens: SpecialTokens{BOS: []int32{0}, EOS: []int32{2}}},
		has:   familyKeys{windows: true, noRope: true},
		read:  exaone4Windows,
		write: writeEXAONE4,
		layer: func(l *layer, c Config) {
			l.qkv(false)
			l.headNorms()
			l.output(false)
			l.attendedNorm()
			l.gatedMLP(false)
			l.mlpNorm()
		},
		gguf: &gguf{ropeFactors: true, read: exaone4GGUF, write: writeWindowGGUF},
	})
}

// exaone4Windows reads from layer_types which layers have a window. If the key is absent, it reads
// sliding_window_pattern n: all layers have a window, except every n-th. If there is a sliding_window, layers without a
// window have no positions.
func exaone4Windows(k *keys, c *Config) {
	window := readSlidingWindow(k, 4096)
	slides, given := readLayerTypes(k, c, slidingAttention)
	if !given && window > 0 {
		if name, named := k.values["sliding_window_pattern"].(string); named {
			k.fail("sliding_window_pattern %q is not supported without layer_types", strictjson.Brief(name))
		}
		pattern := k.interval("sliding_window_pattern", 4)
		slides = eachLayer(c.Layers, func(i int) bool { return (i+1)%pattern != 0 })
	}
	if k.err != nil || slides == nil {
		return
	}
	slide(k, c, window, func(i int) bool { return slides[i] })
	if window > 0 {
		rotateInWindows(c)
	}
}

// rotateInWindows removes the rotary positions from layers without a window.
func rotateInWindows(c *Config) {
	c.Rope.Without = eachLayer(c.Layers, func(i int) bool { return c.Layer(i).Window() == 0 })
}

// exaone4GGUF reads windows. llama.cpp applies them only if the model has 64 layers, so windows of other models are refused.
func exaone4GGUF(k *keys, c *Config) {
	const layersWithWindows = 64
	window := 0
	k.integer("attention.sliding_window", &window)
	switch {
	case c.Layers == layersWithWindows:
		k.require("attention.sliding_window")
		windowsGGUF(k, 4, c)
		rotateInWindows(c)
	case window > 0:
		k.fail("attention.sliding_window is %d: supported only for models of %d layers, as in llama.cpp", window, layersWithWindows)
	}
}

func writeEXAONE4(c Config) map[string]any {
	object := map[string]any{"layer_types": c.layerTypes(), "sliding_window": c.Windows.orNull()}
	if c.Rope.Without != nil && c.Windows == nil { // a window that no layer has: all layers are without positions
		object["sliding_window"] = c.MaxPosition
	}
	return object
}
