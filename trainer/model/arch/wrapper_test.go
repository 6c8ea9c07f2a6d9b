package arch

import (
	"slices"
	"strings"
	"testing"
)

// TestAbsentKeysOfQwenVL: an absent key has the default of the VL model's language model in transformers 5.17, and not of Qwen2Config or
// Qwen3Config.
func TestAbsentKeysOfQwenVL(t *testing.T) {
	for _, c := range []struct {
		json        string
		theta, eps  float64
		kv, longest int
		windows     bool
	}{
		{`{"model_type": "qwen2_vl", "num_attention_heads": 16, "hidden_size": 64}`, 1e6, 1e-5, 8, 32768, false},
		{`{"model_type": "qwen2_5_vl", "text_config": {"num_attention_heads": 16, "hidden_size": 64}}`, 1e6, 1e-5, 8, 32768, false},
		{`{"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text", "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_size": 64,
			"rope_parameters": {"rope_theta": 2e6, "rope_type": "default"}, "rms_norm_eps": 1e-6}}`, 2e6, 1e-6, 4, 32768, false},
		{`{"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text", "use_sliding_window": true, "sliding_window": 64}}`, 5e5, 1e-6, 32, 128000, false},
		{`{"model_type": "llava", "text_config": {"model_type": "qwen2"}}`, 1e4, 1e-6, 32, 32768, false},
	} {
		got, err := ParseJSON([]byte(c.json))
		if err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		if got.Rope.Theta != c.theta || got.RMSEps != c.eps || got.KVHeads != c.kv || got.MaxPosition != c.longest || (len(got.Windows) > 0) != c.windows {
			t.Errorf("%s: theta %g, eps %g, %d key-value heads, %d positions, windows %v", c.json, got.Rope.Theta, got.RMSEps, got.KVHeads, got.MaxPosition, got.Windows)
		}
	}
}

// TestPadOfSmolVLM: releases of transformers before 5 save a pad_token_id of the whole model that is outside the language
// model's vocabulary.
func TestPadOfSmolVLM(t *testing.T) {
	for pad, want := range map[string]int32{"128002": 2, "3": 3} {
		got, err := ParseJSON([]byte(`{"model_type": "smolvlm", "pad_token_id": ` + pad + `, "text_config": {"vocab_size": 49280, "pad_token_id": 2}}`))
		if err != nil || !slices.Equal(got.Tokens.Pad, []int32{want}) {
			t.Errorf("pad_token_id %s and 2: %v, %v", pad, got.Tokens.Pad, err)
		}
	}
}

// TestNoteOnYaRN: a note has the factors that engines use if they differ.
func TestNoteOnYaRN(t *testing.T) {
	for keys, noted := range map[string]bool{
		`"attn_factor": 0.8782488562869419`:                        true,
		`"attn_factor": 0.8782488562869419, "attention_factor": 1`: false,
		`"attn_factor": 1`: false,
		`"beta_fast": 32`:  false,
	} {
		c, err := ParseJSON([]byte(`{"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, ` + keys + `}}`))
		if err != nil {
			t.Errorf("%s: %v", keys, err)
		}
		if notes := Notes(c); (len(notes) > 0) != noted || noted && !strings.Contains(notes[0], "by 1.13863. vLLM multiplies them by 1: ") {
			t.Errorf("%s: %q", keys, notes)
		}
	}
}

// TestKindOfRopeBesideMRope: rope_type has priority over type, which transformers also reads.
func TestKindOfRopeBesideMRope(t *testing.T) {
	for section, scaled := range map[string]bool{
		`{"type": "mrope", "mrope_section": [2, 1, 1]}`:      false,
		`{"rope_type": "mrope", "mrope_section": [2, 1, 1]}`: false,
		`{"type": "mrope", "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "mrope_section": [2, 1, 1]}`: true,
	} {
		got, err := ParseJSON([]byte(`{"model_type": "qwen2_5_vl", "text_config": {"hidden_size": 64, "num_attention_heads": 8, "rope_scaling": ` + section + `}}`))
		if err != nil || (got.Rope.Scaling != nil) != scaled {
			t.Errorf("%s: %+v, %v", section, got.Rope.Scaling, err)
		}
	}
}
