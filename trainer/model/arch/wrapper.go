package arch

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// body is the beginning of the names of a language model's tensors, except the head's.
const body = "model."

// textConfig is the key under which the configuration of a larger model holds its language model's configuration.
const textConfig = "text_config"

// wrapper is a model_type of models that contain a language model, as transformers defines it.
type wrapper struct {
	text string // model_type of the language model if text_config has none
	body string // beginning of its names in the module tree; "": model.language_model.
	tied bool   // the default of tie_word_embeddings
	flat bool   // the keys of the language model may be at the top level
}

var wrappers = map[string]wrapper{
	"gemma3":      {text: Gemma3, tied: true},
	"gemma4":      {text: Gemma4, tied: true},
	"mistral3":    {text: "mistral", tied: true},
	"internvl":    {text: Qwen2, tied: true},
	"lfm2_vl":     {text: LFM2, tied: true},
	"llava":       {text: Llama},
	"llava_next":  {text: Llama},
	"qwen2_vl":    {text: "qwen2_vl_text", flat: true},
	"qwen2_5_vl":  {text: "qwen2_5_vl_text", flat: true},
	"qwen3_vl":    {text: "qwen3_vl_text"},
	"qwen3_5":     {text: Qwen35},
	"idefics3":    {text: Llama, body: "model.text_model."},
	"smolvlm":     {text: Llama, body: "model.text_model."},
	"qwen3_5_moe": {text: Qwen35MoE},
}

// textType is a language model of a family that has a model_type of its own in text_config. Its positions have three coordinates,
// which are equal in text.
type textType struct {
	family string
	absent map[string]json.Number // values of absent keys, where transformers' differ from the family's
	unread string                 // key that transformers does not read
}

var (
	qwen2Text = textType{family: Qwen2, absent: map[string]json.Number{"vocab_size": "152064", "hidden_size": "8192", "num_hidden_layers": "80",
		"num_attention_heads": "64", "num_key_value_heads": "8", "intermediate_size": "29568", "rms_norm_eps": "1e-5", "rope_theta": "1e6",
		"max_window_layers": "80"}}
	qwen3Text = textType{family: Qwen3, absent: map[string]json.Number{"rope_theta": "5e5", "max_position_embeddings": "128000"},
		unread: "use_sliding_window"}
	textTypes = map[string]textType{"qwen2_vl_text": qwen2Text, "qwen2_5_vl_text": qwen2Text, "qwen3_vl_text": qwen3Text}
)

// Body returns the beginning of the names of all tensors except the head's: their place in transformers' module tree.
func (c Config) Body() string {
	if c.Wrapper == "" {
		return body
	}
	return cmp.Or(wrappers[c.Wrapper].body, "model.language_model.")
}

// wrap replaces the beginning of the tensors' names by another one.
func (l *Layout) wrap(wrapped string) {
	for _, leaf := range l.Leaves {
		for i := range leaf.Parts {
			for _, name := range []*string{&leaf.Parts[i].Name, &leaf.Parts[i].Other, &leaf.Parts[i].Fused.Name} {
				if rest, inside := strings.CutPrefix(*name, body); inside {
					*name = wrapped + rest
				}
			}
		}
	}
}

// unwrap returns the keys of the language model, including those that are stored outside text_config, and the wrapper's
// model_type. kind is "" for a language model that is not part of another model.
func unwrap(k *keys) (text *keys, kind string) {
	k.text("model_type", &kind)
	w, known := wrappers[kind]
	text = k.section(textConfig)
	switch {
	case k.err != nil || text == nil && !(known && w.flat):
		return k, ""
	case text == nil:
		text = &keys{values: k.values}
	}
	named, _ := k.values["architectures"].([]any)
	for _, a := range named {
		if name, _ := a.(string); !strings.HasSuffix(name, "ForConditionalGeneration") && !strings.HasSuffix(name, "ForCausalLM") {
			k.fail("architectures names %s: for models with %s, only ...ForConditionalGeneration is supported", strictjson.Show(a), textConfig)
		}
	}
	text.values, text.err = maps.Clone(text.values), k.err
	delete(text.values, "architectures")
	setTextType(text, w, kind)
	takeOutside(text, k, w)
	return text, kind
}

// setTextType replaces model_type by the family's. It also replaces rotary positions with three coordinates by positions with
// one, which are the same for text.
func setTextType(k *keys, w wrapper, outer string) {
	name := w.text
	if k.values["model_type"] != outer {
		k.text("model_type", &name)
	}
	if t, ok := textTypes[name]; ok {
		name = t.family
		delete(k.values, t.unread)
		for key, value := range t.absent {
			if !k.has(key) {
				k.values[key] = value
			}
		}
	}
	if name == "" {
		k.fail("model_type is missing")
	}
	k.values["model_type"] = name
	rope := k.section("rope_scaling")
	if rope == nil || rope.values["type"] != "mrope" && rope.values["rope_type"] != "mrope" {
		return
	}
	rope.values = maps.Clone(rope.values)
	delete(rope.values, "type")
	if rope.values["rope_type"] == nil || rope.values["rope_type"] == "mrope" { // another kind has priority over type
		rope.values["rope_type"] = "default"
	}
	k.values["rope_scaling"] = rope.values
}

// takeOutside copies keys from the whole model's configuration that apply to the language model.
func takeOutside(k *keys, outer *keys, w wrapper) {
	for _, key := range []string{"bos_token_id", "eos_token_id", "pad_token_id", "quantization_config", "compression_config"} {
		if v, has := outer.values[key]; has && v != nil && !(key == "pad_token_id" && k.has(key) && outsideVocabulary(k, v)) {
			k.values[key] = v
		}
	}
	tied, inner := w.tied, false
	for _, key := range []string{"tie_word_embeddings", "tie_embedding"} { // LFM2 has both
		outer.booleanOrNull(key, &tied)
		k.booleanOrNull(key, &inner)
	}
	delete(k.values, "tie_embedding")
	k.values["tie_word_embeddings"] = tied || inner
	k.fold(outer)
}

// outsideVocabulary reports whether a token id is too large for the language model. SmolVLM's whole model has such a pad_token_id, which
// its modules do not use.
func outsideVocabulary(k *keys, v any) bool {
	id, isID := int32Of(v)
	size, known := int32Of(k.values["vocab_size"])
	return isID && known && id >= size
}

// Text returns the configuration of the language model alone, for a folder that holds nothing else.
func (c Config) Text() (Config, error) {
	if c.Wrapper == "" {
		return c, nil
	}
	object, err := strictjson.Object(c.Raw)
	if err != nil {
		return c, err
	}
	text, isObject := object[textConfig].(map[string]any)
	if !isObject {
		text = object
		for key := range text {
			if strings.HasPrefix(key, "vision") || strings.HasPrefix(key, "image") || strings.HasPrefix(key, "video") {
				delete(text, key)
			}
		}
	}
	c.Raw, err = json.Marshal(text)
	c.Wrapper = ""
	return c, err
}

// wrappedJSON returns the config.json that was read, changed for weights in another type and without quantisation.
func wrappedJSON(raw json.RawMessage, torchDType string) ([]byte, error) {
	object, err := strictjson.Object(raw)
	if err != nil {
		return nil, err
	}
	changed := false
	set := func(in map[string]any, otherwise string) {
		for _, key := range []string{"quantization_config", "compression_config"} {
			if _, has := in[key]; has {
				delete(in, key)
				changed = true
			}
		}
		keys := slices.DeleteFunc([]string{"dtype", "torch_dtype"}, func(key string) bool { return in[key] == nil })
		if len(keys) == 0 && otherwise != "" {
			keys = []string{otherwise}
		}
		for _, key := range keys {
			changed = changed || in[key] != torchDType
			in[key] = torchDType
		}
	}
	set(object, "torch_dtype")
	if text, ok := object[textConfig].(map[string]any); ok {
		set(text, "")
	}
	if !changed {
		return raw, nil
	}
	return indented(object)
}
