package arch

import (
	"maps"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestGemma4GGUFRefusals changes the metadata of a model of four layers. The last two layers share the keys and values of the first two.
func TestGemma4GGUFRefusals(t *testing.T) {
	const p = "gemma4."
	base := map[string]any{"general.architecture": "gemma4", p + "embedding_length": int64(32), p + "block_count": int64(4), p + "attention.head_count": int64(4),
		p + "attention.head_count_kv": int64(2), p + "feed_forward_length": []int64{48, 48, 96, 96}, p + "context_length": int64(64),
		p + "attention.key_length": int64(16), p + "attention.value_length": int64(16), p + "attention.key_length_swa": int64(8),
		p + "attention.value_length_swa": int64(8), p + "rope.dimension_count": int64(16), p + "rope.dimension_count_swa": int64(8),
		p + "attention.sliding_window": int64(6), p + "attention.sliding_window_pattern": []bool{true, false, true, false},
		p + "attention.shared_kv_layers": int64(2), p + "final_logit_softcapping": 30.0, p + "attention.layer_norm_rms_epsilon": 1e-6}
	shapes := map[string][]int64{ggufEmbedding: {100, 32}, "blk.1.attn_v.weight": {16, 32}}
	still := []float32{1, 1, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30}
	c, err := FromGGUF(base, shapes, still)
	if err != nil {
		t.Fatal(err)
	}
	rotary, _ := c.Layer(1).Rotary()
	if f := rotary.Frequencies(); !c.ByLayer.DoubleWide || c.Layer(1).KVHeads() != 2 || c.KVHeads != 2 || c.HeadDim != 8 || f[1] == 0 || f[2] != 0 {
		t.Errorf("%+v, frequencies %v", c, f)
	}
	for _, one := range []struct {
		key    string
		value  any
		shared []float32
		want   string
	}{
		{"attention.shared_kv_layers", int64(1), still, "feed_forward_length is 96 for layer 2"},
		{"attention.sliding_window_pattern", []bool{false, true, true, false}, still, "layer 0 has a window and layer 1 has none"},
		{"attention.sliding_window_pattern", []bool{false, false, false, false}, still, "at least one layer must have a window"},
		{"attention.head_count_kv", []int64{2, 1, 1, 1}, still, "head_count_kv is 1 for layer 2"},
		{"attention.head_count_kv", []int64{2, 1}, still, "lists 2 layers"},
		{"attention.value_length", int64(8), still, "attention.value_length is 8"},
		{"attention.value_length_swa", int64(16), still, "attention.value_length_swa is 16"},
		{"rope.dimension_count_swa", int64(4), still, "rope.dimension_count_swa 4"},
		{"rope.scaling.factor", 2.0, still, "rope.scaling"},
		{"expert_count", int64(4), still, "expert_used_count is missing"},
		{"context_length", int64(64), nil, "0 values: expected 8"},
		{"context_length", int64(64), []float32{1, 2, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30}, "factor 1 is 2"},
	} {
		changed := maps.Clone(base)
		changed[p+one.key] = one.value
		_, err := FromGGUF(changed, shapes, one.shared)
		golden.WantError(t, err, one.want)
	}
}
