package arch

// Ministral3 is the family of the text models of Ministral 3: Mistral with queries that grow with their position.
const Ministral3 = "ministral3"

func init() {
	register(&family{
		name:         Ministral3,
		architecture: "Ministral3ForCausalLM",
		defaults: Config{VocabSize: 131072, Hidden: 4096, Layers: 34, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 14336, RMSEps: 1e-5,
			MaxPosition: 262144, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{11}}},
		has: familyKeys{windows: true, queryGrowth: true},
		rope: `{"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
			"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}`,
		read: everyLayerSlides(0),
		write: func(c Config) map[string]any {
			rope := c.Rope.section()
			rope["llama_4_scaling_beta"] = decimal(c.Queries.Growth.Beta)
			if rope[originalPositions] = c.MaxPosition; c.Queries.Growth.Positions > 0 {
				rope[originalPositions] = c.Queries.Growth.Positions
			}
			return map[string]any{"sliding_window": c.Windows.orNull(), "rope_scaling": rope}
		},
		layer: llamaLayer,
		gguf:  &gguf{name: "mistral3", interleaved: true, read: ministral3GGUF, write: writeMinistral3GGUF},
	})
}

// ministral3GGUF reads the scaling of queries, whose steps are YaRN's original positions there.
func ministral3GGUF(k *keys, c *Config) {
	beta := 0.0
	k.float("attention.temperature_scale", &beta)
	if beta == 0 {
		return
	}
	c.Queries.Growth = QueryGrowth{Beta: beta, Positions: c.MaxPosition}
	k.integer("rope.scaling.original_context_length", &c.Queries.Growth.Positions)
}

func writeMinistral3GGUF(c Config, set func(key string, value any)) {
	if c.Queries.Growth != (QueryGrowth{}) {
		set("attention.temperature_scale", c.Queries.Growth.Beta)
		set("rope.scaling.original_context_length", c.Queries.Growth.Positions)
	}
	if yarn, ok := c.Rope.Scaling.(*RopeYaRN); ok {
		if yarn.AttentionFactor == 1 {
			set("rope.scaling.yarn_log_multiplier", 1.0)
		}
		set("rope.scaling.yarn_beta_fast", yarn.BetaFast)
		set("rope.scaling.yarn_beta_slow", yarn.BetaSlow)
	}
}
