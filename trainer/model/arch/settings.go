package arch

import (
	"fmt"
	"reflect"
	"slices"
)

// setting is a scalar field of Config, with its key in each format. Readers, writers and Validate use the same tables of settings.
type setting struct {
	json string // key of config.json; "": it has none
	gguf string // key of GGUF metadata, without the name of the architecture; "": it has none
	to   any    // *int, *bool, or *float64, whose value must be positive and finite

	most     int  // an integer must be 1 to most; 0: it is not checked here
	null     bool // in config.json, null is the same as an absent key
	lacks    bool // the family does not have this key, so it must be false
	required bool // in GGUF metadata
	list     bool // GGUF metadata may list a number for each layer
}

// settings lists the settings of a configuration.
func (c *Config) settings() []setting {
	all, f := baseSettings(c), families[c.Family]
	if c.Module != nil {
		return all
	}
	all = slices.Concat(all, headSettings(c), biasSettings(c, f))
	if c.Mixture != nil {
		all = append(all, c.Mixture.settings(f)...)
	}
	if c.GatedDelta != nil {
		all = append(all, c.GatedDelta.settings()...)
	}
	if f.has.shortConv {
		all = append(all, c.ShortConv.orDefault().settings()...)
	}
	if f.has.byLayer {
		all = append(all, c.ByLayer.orZero().settings()...)
	}
	return all
}

// baseSettings lists the settings whose keys are the same in all families. A TorchScript module has only the first three.
func baseSettings(c *Config) []setting {
	all := []setting{
		{json: "vocab_size", gguf: "vocab_size", to: &c.VocabSize, most: MaxVocab},
		{json: "hidden_size", gguf: "embedding_length", to: &c.Hidden, most: maxHidden, required: true},
		{json: "max_position_embeddings", gguf: "context_length", to: &c.MaxPosition, most: maxPosition, required: true},
	}
	if c.Module != nil {
		return all
	}
	return append(all, []setting{
		{json: "num_hidden_layers", gguf: "block_count", to: &c.Layers, most: maxLayers, required: true},
		{json: "num_attention_heads", gguf: "attention.head_count", to: &c.Heads, most: maxHeads, required: true, list: true},
		{json: "intermediate_size", gguf: "feed_forward_length", to: &c.FFN, most: maxFFN, required: c.FFN == 0, list: true},
		{json: "rms_norm_eps", gguf: "attention.layer_norm_rms_epsilon", to: &c.RMSEps, required: true},
		{json: "rope_theta", gguf: "rope.freq_base", to: &c.Rope.Theta, null: true},
		{json: "tie_word_embeddings", to: &c.Tied},
	}...)
}

// headSettings lists the settings whose defaults depend on values of baseSettings.
func headSettings(c *Config) []setting {
	return []setting{
		{json: "num_key_value_heads", gguf: "attention.head_count_kv", to: &c.KVHeads, most: maxHeads, null: true, list: true},
		{json: "head_dim", gguf: "attention.key_length", to: &c.HeadDim, most: maxHeadDim, null: true},
	}
}

// biasSettings lists the settings of biases, whose keys differ between families. A key that has another name in the family must be of
// the right type, but its value is ignored, as in transformers.
func biasSettings(c *Config, f *family) []setting {
	attention := setting{json: "attention_bias", to: &c.AttentionBias, null: true, lacks: !f.has.attentionBias}
	mlp := setting{json: "mlp_bias", to: &c.MLPBias, null: true, lacks: !f.has.mlpBias}
	switch {
	case f.has.useBias:
		attention.to, mlp.to = new(bool), new(bool)
		return []setting{attention, mlp, {json: "use_bias", to: &c.AttentionBias, null: true}, {json: "use_bias", to: &c.MLPBias, null: true}}
	case f.has.qkvBias:
		attention.to = new(bool)
		return []setting{attention, mlp, {json: "qkv_bias", to: &c.AttentionBias}}
	}
	return []setting{attention, mlp}
}

// read reads settings. If a key is absent, the field keeps its value.
func (k *keys) read(settings []setting) {
	for _, s := range settings {
		key := s.json
		if k.gguf {
			key = s.gguf
		}
		if key == "" || s.null && k.null(key) {
			continue
		}
		if k.gguf && s.required {
			k.require(key)
		}
		switch to := s.to.(type) {
		case *int:
			if list, isList := k.values[key].([]int64); isList && s.list && len(list) > 0 {
				k.integerOf(key, list[0], to)
			} else {
				k.integer(key, to)
			}
		case *float64:
			k.float(key, to)
		case *bool:
			k.boolean(key, to)
		}
	}
}

// value returns the field's value.
func (s setting) value() any { return reflect.ValueOf(s.to).Elem().Interface() }

// jsonValues returns the keys of config.json with the values of their fields.
func jsonValues(settings []setting) map[string]any {
	object := map[string]any{}
	for _, s := range settings {
		if s.json == "" || s.lacks {
			continue
		}
		object[s.json] = s.value()
		if number, isFloat := object[s.json].(float64); isFloat {
			object[s.json] = decimal(number)
		}
	}
	return object
}

// validate checks the value in a family.
func (s setting) validate(f *family) error {
	switch v := s.value().(type) {
	case int:
		if s.most > 0 && (v < 1 || v > s.most) {
			return fmt.Errorf("%s is %d: must be 1 to %d", s.json, v, s.most)
		}
	case float64:
		if !positiveFinite(v) {
			return fmt.Errorf("%s is %g: must be positive and finite", s.json, v)
		}
	case bool:
		if v && s.lacks {
			return fmt.Errorf("%s is set: model_type %s does not have this key", s.json, f.name)
		}
	}
	return nil
}
