package arch

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// sharedKeys returns the config.json of the golden case with E2B's parts, after change.
func sharedKeys(t *testing.T, change func(object map[string]any)) []byte {
	t.Helper()
	var object map[string]any
	golden.Read(t, "families", "gemma4-shared-keys/config.json", &object)
	change(object)
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestGemma4Refusals(t *testing.T) {
	rope := func(full, sliding string) func(map[string]any) {
		return func(object map[string]any) {
			object["rope_parameters"] = map[string]any{fullAttention: map[string]any{"rope_type": full, "rope_theta": 1e6, "factor": 2},
				slidingAttention: map[string]any{"rope_type": sliding, "rope_theta": 1e4}}
		}
	}
	set := func(key string, value any) func(map[string]any) {
		return func(object map[string]any) { object[key] = value }
	}
	for _, c := range []struct {
		names  string
		change func(map[string]any)
	}{
		{"num_experts is missing", func(object map[string]any) {
			object["enable_moe_block"] = true
			delete(object, "num_experts")
		}},
		{"top_k_experts", func(object map[string]any) {
			object["enable_moe_block"], object["num_experts"], object["top_k_experts"], object["moe_intermediate_size"] = true, 4, 5, 8
		}},
		{"use_bidirectional_attention", set("use_bidirectional_attention", "all")},
		{"attn_logit_softcapping", set("attn_logit_softcapping", 50)},
		{"final_logit_softcapping", set("final_logit_softcapping", -1)},
		{"num_kv_shared_layers", set("num_kv_shared_layers", 6)},
		{"layer 2, of sliding_attention", func(object map[string]any) {
			object["num_kv_shared_layers"] = 4
			object["layer_types"] = []string{fullAttention, fullAttention, slidingAttention, fullAttention, slidingAttention, fullAttention}
		}},
		{"vocab_size_per_layer_input", set("vocab_size_per_layer_input", 63)},
		{"global_head_dim", set("global_head_dim", 7)},
		{"num_global_key_value_heads", func(object map[string]any) {
			object["attention_k_eq_v"], object["num_global_key_value_heads"] = true, 3
		}},
		{`rope_type "yarn"`, rope("yarn", "default")},
		{`rope_type "proportional"`, rope("default", "proportional")},
		{"per_layer_config.0.layers with a window", set("per_layer_config", map[string]any{"0": map[string]any{"head_dim": 6}})},
		{"per_layer_config.1.intermediate_size", set("per_layer_config", map[string]any{"1": map[string]any{"intermediate_size": 6}})},
	} {
		_, err := ParseJSON(sharedKeys(t, c.change))
		golden.WantError(t, err, c.names)
	}
}

// transformers 5.24 writes global_head_dim as overrides of layers.
func TestGemma4Overrides(t *testing.T) {
	want, err := ParseJSON(sharedKeys(t, func(map[string]any) {}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseJSON(sharedKeys(t, func(object map[string]any) {
		delete(object, "global_head_dim")
		object["per_layer_config"] = map[string]any{"1": map[string]any{"head_dim": 16}, "3": map[string]any{"head_dim": 16}, "5": map[string]any{"head_dim": 16}}
	}))
	got.Raw, want.Raw = nil, nil
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
}

// The names of the tensors are the ones that Gemma4ForConditionalGeneration uses.
func TestGemma4Wrapped(t *testing.T) {
	text := sharedKeys(t, func(object map[string]any) { delete(object, "architectures") })
	c, err := ParseJSON(fmt.Appendf(nil, `{"architectures":["Gemma4ForConditionalGeneration"],"model_type":"gemma4","text_config":%s,"vision_config":{}}`, text))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, tensor := range c.Layout().Tensors() {
		names[tensor.Name] = true
	}
	for _, name := range []string{"embed_tokens_per_layer.weight", "layers.5.layer_scalar", "layers.5.per_layer_projection.weight", "per_layer_projection_norm.weight"} {
		if !names["model.language_model."+name] {
			t.Errorf("no %s in %v", name, slices.Sorted(maps.Keys(names)))
		}
	}
	unread := []string{"layers.3.self_attn.k_proj.weight", "layers.5.self_attn.v_proj.weight", "layers.4.self_attn.k_norm.weight"}
	for _, name := range unread {
		if name = "model.language_model." + name; names[name] || !c.Unread(name) {
			t.Errorf("%s is read", name)
		}
	}
	for _, name := range []string{"model.language_model.layers.2.self_attn.k_proj.weight", "model.language_model.layers.5.self_attn.q_proj.weight", "model.layers.5.self_attn.k_proj.weight"} {
		if c.Unread(name) {
			t.Errorf("%s is not read", name)
		}
	}
}
