package arch

// OLMo3 is the family of OLMo 3: OLMo 2 with windows on most layers. The rotary embedding of those layers is not scaled.
const OLMo3 = "olmo3"

func init() {
	register(&family{
		name:         OLMo3,
		architecture: "Olmo3ForCausalLM",
		defaults: Config{VocabSize: 50304, Hidden: 4096, Layers: 32, Heads: 32, FFN: 11008, RMSEps: 1e-5, Rope: Rope{Theta: 500000, LocalTheta: 500000},
			MaxPosition: 2048, Tokens: SpecialTokens{EOS: []int32{50279}, Pad: []int32{1}}},
		has:   familyKeys{attentionBias: true, windows: true},
		read:  olmo3Windows,
		write: writeOLMo3,
		layer: olmoLayer,
		gguf:  &gguf{name: OLMo2, fits: olmoSlides, read: olmo3GGUF, write: writeWindowGGUF},
	})
}

// olmoSlides reports whether layers of a file have a window, as in OLMo 3.
func olmoSlides(k *keys) bool {
	window := 0
	k.integer(OLMo2+".attention.sliding_window", &window)
	return window > 0
}

// olmo3GGUF reads windows as llama.cpp does. All layers have the same theta there.
func olmo3GGUF(k *keys, c *Config) {
	local := c.Rope.Theta
	windowsGGUF(k, 4, c)
	k.float("rope.freq_base_swa", &local)
	if local != c.Rope.Theta {
		k.fail("rope.freq_base_swa %g is not supported: only rope.freq_base, %g", local, c.Rope.Theta)
	}
	c.Rope.LocalTheta = local
}

// olmo3Windows reads from layer_types which layers have a window. If the key is absent, three of four layers have one.
func olmo3Windows(k *keys, c *Config) {
	slideByType(k, c, readSlidingWindow(k, 4096), func(i int) bool { return (i+1)%4 != 0 })
}

// writeOLMo3 writes rope_parameters by type of layer. It also writes rope_theta and rope_scaling, which older readers use.
func writeOLMo3(c Config) map[string]any {
	full := c.Rope.section()
	full["rope_theta"] = decimal(c.Rope.Theta)
	sliding := map[string]any{"rope_type": "default", "rope_theta": decimal(c.Rope.LocalTheta)}
	object := typesAndWindow(c)
	object["rope_parameters"] = map[string]any{fullAttention: full, slidingAttention: sliding}
	return object
}
