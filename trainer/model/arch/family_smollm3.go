package arch

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// SmolLM3 is the family of SmolLM3: Llama with some layers that have no positions and may have a window.
const SmolLM3 = "smollm3"

func init() {
	register(&family{
		name:         SmolLM3,
		architecture: "SmolLM3ForCausalLM",
		defaults: Config{VocabSize: 128256, Hidden: 2048, Layers: 36, Heads: 16, KVHeads: 4, FFN: 11008, RMSEps: 1e-6,
			Rope: Rope{Theta: 2e6}, MaxPosition: 32768, Tied: true, Tokens: SpecialTokens{BOS: []int32{128000}, EOS: []int32{128001}, Pad: []int32{128004}}},
		has: familyKeys{attentionBias: true, mlpBias: true, windows: true, noRope: true},
		read: func(k *keys, c *Config) {
			readNoRopeLayers(k, c)
			smolLM3Windows(k, c)
		},
		write: func(c Config) map[string]any {
			object := writeUpperLayers(c)
			rotary := make([]int, c.Layers)
			for i := range rotary {
				if c.Rope.Without == nil || !c.Rope.Without[i] {
					rotary[i] = 1
				}
			}
			object["no_rope_layers"] = rotary
			return object
		},
		layer: llamaLayer,
	})
}

// readNoRopeLayers reads no_rope_layers, in which 1 stands for a layer with rotary positions. If the key is absent, it reads
// no_rope_layer_interval n: each n-th layer has no rotary positions.
func readNoRopeLayers(k *keys, c *Config) {
	var without []bool
	if k.values["no_rope_layers"] == nil {
		n := k.interval("no_rope_layer_interval", 4)
		without = eachLayer(c.Layers, func(i int) bool { return (i+1)%n == 0 })
	} else {
		list, _ := k.values["no_rope_layers"].([]any)
		if least := boundedLayers(c.Layers); len(list) < least {
			k.fail("no_rope_layers must list at least %d layers", least)
			return
		}
		without = eachLayer(c.Layers, func(i int) bool {
			text := strictjson.Show(list[i])
			if text != "0" && text != "1" {
				k.fail("no_rope_layers[%d] is %s: must be 1, for a layer with rotary positions, or 0", i, text)
			}
			return text == "0"
		})
	}
	if slices.Contains(without, true) {
		c.Rope.Without = without
	}
}

// smolLM3Windows reads from layer_types which layers have a window. If the key is absent, the layers without positions have
// one.
func smolLM3Windows(k *keys, c *Config) {
	use, window := false, readSlidingWindow(k, 0)
	k.booleanOrNull("use_sliding_window", &use)
	slideByType(k, c, window, func(i int) bool { return use && window > 0 && c.Rope.Without != nil && c.Rope.Without[i] })
}
