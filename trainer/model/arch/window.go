package arch

import (
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// Types of layers in layer_types.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// Windows has an entry for each layer: a query sees its own key and the Windows[i]-1 keys before it; 0: all keys before it. Nil is the
// same as all zero.
type Windows []int

// size returns the window of the layers that have one, or 0 if there are none.
func (w Windows) size() int {
	if w == nil {
		return 0
	}
	return slices.Max(w)
}

// slide sets a window for the layers for which slides returns true.
func slide(k *keys, c *Config, window int, slides func(layer int) bool) {
	windows := make([]int, boundedLayers(c.Layers))
	for i := range windows {
		if !slides(i) {
			continue
		}
		if window < 1 {
			k.fail("sliding_window is %d in layer %d: must be at least 1", window, i)
			return
		}
		windows[i] = window
	}
	if slices.ContainsFunc(windows, func(w int) bool { return w > 0 }) {
		c.Windows = windows
	}
}

// slideByType sets a window for the layers that layer_types names. If that key is absent, it sets a window for the layers for which
// absent returns true.
func slideByType(k *keys, c *Config, window int, absent func(layer int) bool) {
	if slides, given := readLayerTypes(k, c, slidingAttention); given {
		absent = func(i int) bool { return slides[i] }
	}
	slide(k, c, window, absent)
}

// readLayerTypes reads which layers layer_types gives another type than full_attention. given is false if the key is absent or wrong.
func readLayerTypes(k *keys, c *Config, other string) (others []bool, given bool) {
	if k.values["layer_types"] == nil {
		return nil, false
	}
	list, _ := k.values["layer_types"].([]any)
	if len(list) != c.Layers {
		k.fail("layer_types must list the types of %d layers", c.Layers)
	}
	for i, kind := range list {
		if kind != fullAttention && kind != other {
			k.fail("layer_types[%d] is %s: only %s and %s are supported", i, strictjson.Show(kind), fullAttention, other)
		}
		others = append(others, kind == other)
	}
	return others, k.err == nil
}

// readSlidingWindow reads sliding_window; null is 0.
func readSlidingWindow(k *keys, absent int) int {
	if k.null("sliding_window") {
		return 0
	}
	window := absent
	k.integer("sliding_window", &window)
	if window < 1 && k.has("sliding_window") {
		k.fail("sliding_window is %d: must be at least 1, or null", window)
	}
	return window
}

// everyLayerSlides returns a function that reads one window for all layers.
func everyLayerSlides(absent int) func(k *keys, c *Config) {
	return func(k *keys, c *Config) { slideEverywhere(k, c, readSlidingWindow(k, absent)) }
}

// everyLayerMaySlide reads sliding_window if use_sliding_window is true.
func everyLayerMaySlide(k *keys, c *Config) { slideEverywhere(k, c, usedWindow(k)) }

// usedWindow reads sliding_window; it is 0 unless use_sliding_window is true.
func usedWindow(k *keys) int {
	use := false
	if k.booleanOrNull("use_sliding_window", &use); !use { // transformers then saves a window of 0
		return 0
	}
	return readSlidingWindow(k, 4096)
}

// slideEverywhere sets a window for all layers, or for none if it is 0.
func slideEverywhere(k *keys, c *Config, window int) {
	slides, _ := readLayerTypes(k, c, slidingAttention)
	if i := slices.Index(slides, window == 0); i >= 0 {
		k.fail("layer_types[%d] contradicts sliding_window, which holds for all layers of model_type %s", i, c.Family)
	}
	if window > 0 {
		slide(k, c, window, func(int) bool { return true })
	}
}

// upperLayersSlide reads the windows of Qwen 2 and 3: with use_sliding_window, the layers of layer_types have one. If that
// key is absent, the layers from max_window_layers up have one.
func upperLayersSlide(k *keys, c *Config) {
	first, window := 28, usedWindow(k)
	k.integerOrNull("max_window_layers", &first)
	slideByType(k, c, window, func(i int) bool { return window > 0 && i >= first })
}

// typesAndWindow returns layer_types for a written config.json, and sliding_window if a layer has a window.
func typesAndWindow(c Config) map[string]any {
	object := map[string]any{"layer_types": c.layerTypes()}
	if c.Windows != nil {
		object["sliding_window"] = c.Windows.size()
	}
	return object
}

// orNull returns the size for a written config.json.
func (w Windows) orNull() any {
	if w == nil {
		return nil
	}
	return w.size()
}

func (c Config) layerTypes() []string {
	return c.typesOfLayers(slidingAttention, func(l LayerConfig) bool { return l.Window() > 0 })
}

// typesOfLayers returns layer_types: the type `other` for some layers, full_attention for the rest.
func (c Config) typesOfLayers(other string, isOther func(LayerConfig) bool) []string {
	types := make([]string, c.Layers)
	for i := range types {
		types[i] = fullAttention
		if isOther(c.Layer(i)) {
			types[i] = other
		}
	}
	return types
}

func (w Windows) validate(layers int) error {
	if w != nil && len(w) != layers {
		return fmt.Errorf("%d windows for %d layers", len(w), layers)
	}
	for i, one := range w {
		if one < 0 || one > maxPosition || one > 0 && one != w.size() {
			return fmt.Errorf("sliding_window is %d in layer %d: must be the same in all layers that have one, 1 to %d", one, i, maxPosition)
		}
	}
	return nil
}

// writeUpperLayers writes the keys that upperLayersSlide reads.
func writeUpperLayers(c Config) map[string]any {
	object := map[string]any{"use_sliding_window": c.Windows != nil, "sliding_window": c.Windows.orNull(), "layer_types": nil}
	if c.Windows != nil {
		object["layer_types"] = c.layerTypes()
	}
	return object
}
