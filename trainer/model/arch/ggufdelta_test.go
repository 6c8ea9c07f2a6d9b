package arch

import (
	"maps"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestTiling compares the order of heads with llama.cpp's: reshape(key heads, value heads for each, size), swap the first two, flatten.
func TestTiling(t *testing.T) {
	g := &GatedDelta{KeyHeads: 2, ValueHeads: 6, KeyDim: 5, ValueDim: 2}
	order := make([]int64, 15)
	for i := range order {
		order[g.tiling(2, 3).Stored(int64(i))] = int64(i)
	}
	if want := []int64{0, 1, 2, 3, 4, 9, 10, 5, 6, 11, 12, 7, 8, 13, 14}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
	for _, same := range []GatedDelta{{KeyHeads: 3, ValueHeads: 3}, {KeyHeads: 1, ValueHeads: 4}} {
		if got := same.tiling(2, 0); got != (Tiling{}) || got.Stored(7) != 7 {
			t.Errorf("%+v: %+v", same, got)
		}
	}
}

// TestGatedDeltaGGUF reads the keys that llama.cpp's converter writes, and refuses changes of them.
func TestGatedDeltaGGUF(t *testing.T) {
	base := map[string]any{"general.architecture": "qwen35", "qwen35.embedding_length": int64(32), "qwen35.block_count": int64(5),
		"qwen35.attention.head_count": int64(4), "qwen35.attention.head_count_kv": int64(2), "qwen35.attention.key_length": int64(16),
		"qwen35.feed_forward_length": int64(48), "qwen35.context_length": int64(64), "qwen35.attention.layer_norm_rms_epsilon": float64(float32(1e-6)),
		"qwen35.rope.freq_base": 1e7, "qwen35.rope.dimension_count": int64(8), "qwen35.rope.dimension_sections": []int64{2, 1, 1, 0},
		"qwen35.ssm.conv_kernel": int64(4), "qwen35.ssm.state_size": int64(8), "qwen35.ssm.group_count": int64(2), "qwen35.ssm.time_step_rank": int64(4),
		"qwen35.ssm.inner_size": int64(32), "qwen35.full_attention_interval": int64(2)}
	shapes := map[string][]int64{ggufEmbedding: {100, 32}}
	for _, one := range []struct {
		key   string
		value any
		want  string
		layer []bool
	}{
		{"context_length", int64(64), "", []bool{true, false, true, false, true}},
		{"full_attention_interval", nil, "", []bool{true, true, true, false, true}},
		{"attention.recurrent_layers", []bool{false, false, true, true, false}, "", []bool{false, false, true, true, false}},
		{"nextn_predict_layers", int64(1), "", []bool{true, false, true, false}},
		{"rope.dimension_sections", []int64{5, 5, 4, 0}, "", []bool{true, false, true, false, true}},
		{"nextn_predict_layers", int64(5), "nextn_predict_layers is 5", nil},
		{"full_attention_interval", int64(0), "full_attention_interval is 0", nil},
		{"full_attention_interval", int64(1), "", make([]bool, 5)},
		{"attention.recurrent_layers", []bool{true, true, true, true, true}, "at least one is needed", nil},
		{"attention.recurrent_layers", []bool{true, false}, "lists 2 layers", nil},
		{"attention.key_length", int64(7), "head_dim", nil},
		{"attention.layer_norm_rms_epsilon", 1e-5, "layer_norm_rms_epsilon is 1e-05", nil},
		{"attention.causal", false, "attention.causal", nil},
		{"ssm.state_size", int64(16), "inner_size is 32: must be ssm.state_size 16 times ssm.time_step_rank 4", nil},
		{"ssm.group_count", int64(3), "linear_num_key_heads", nil},
		{"ssm.group_count", int64(0), "linear_num_key_heads", nil},
		{"ssm.conv_kernel", int64(1), "conv_kernel is 1", nil},
		{"ssm.conv_kernel", nil, "conv_kernel is missing", nil},
		{"rope.dimension_sections", nil, "dimension_sections is missing", nil},
		{"rope.dimension_sections", []int64{2, 1}, "four sizes", nil},
		{"rope.dimension_sections", []int64{-2, 1, 1, 4}, "four sizes", nil},
		{"rope.dimension_sections", []int64{0, 0, 0, 0}, "would not rotate plane 0", nil},
		{"rope.dimension_sections", []int64{2, 1, 0, 1}, "would not rotate plane 2", nil},
		{"rope.dimension_sections", []int64{1, 1, 1, 8}, "would not rotate plane 3", nil},
		{"rope.dimension_sections", []int64{11, 11, 10, 0}, "must be four sizes, together at most 16", nil},
	} {
		changed := maps.Clone(base)
		if changed["qwen35."+one.key] = one.value; one.value == nil {
			delete(changed, "qwen35."+one.key)
		}
		c, err := FromGGUF(changed, shapes, nil)
		if one.want != "" {
			golden.WantError(t, err, one.want)
			continue
		}
		if err != nil || c.Layers != len(one.layer) || !slices.Equal(c.GatedDelta.Layers, one.layer) || c.Rope.Dim != 8 || c.GatedDelta.ValueDim != 8 {
			t.Errorf("%s %v: %+v, delta rules %+v: %v", one.key, one.value, c, c.GatedDelta, err)
		}
	}
}
