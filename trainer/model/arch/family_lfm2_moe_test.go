package arch

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func TestLFM2MoE(t *testing.T) {
	const layers = `"num_hidden_layers":3,"layer_types":["conv","full_attention","conv"]`
	for _, c := range []struct {
		json  string
		dense []int
		bias  bool
		scale float64
	}{
		{layers, []int{0, 1}, true, 1},
		{layers + `,"num_dense_layers":0`, nil, true, 1},
		{layers + `,"num_dense_layers":1,"use_expert_bias":false,"routed_scaling_factor":2.5`, []int{0}, false, 2.5},
	} {
		got, err := ParseJSON([]byte(`{"model_type":"lfm2_moe",` + c.json + `}`))
		if err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		m := got.Mixture
		if !slices.Equal(m.Dense, c.dense) || *m.Sigmoid != (SigmoidRouter{c.bias, c.scale}) || m.Experts != 32 || !m.Normalise || !got.Tied || got.RMSEps != 1e-5 {
			t.Errorf("%s: %+v, %+v", c.json, *m, *m.Sigmoid)
		}
		biases, names := 0, []string{}
		for _, l := range got.Layout().Leaves {
			if l.Constant() {
				biases++
				names = append(names, l.Parts[0].Name)
			}
		}
		if want := 3 - len(c.dense); c.bias && (biases != want || names[len(names)-1] != "model.layers.2.feed_forward.expert_bias") || !c.bias && biases > 0 {
			t.Errorf("%s: constant tensors %v", c.json, names)
		}
	}
}

func TestLFM2MoERefusals(t *testing.T) {
	const layers = `"num_hidden_layers":2,"layer_types":["conv","full_attention"]`
	for json, want := range map[string]string{
		`"num_hidden_layers":3`: "layer_types is missing",
		`"num_hidden_layers":3,"layer_types":null,"full_attn_idxs":[1]`:                      "layer_types is missing",
		layers + `,"num_dense_layers":2`:                                                     "num_dense_layers is 2: must be 0 to 1",
		layers + `,"num_dense_layers":-1`:                                                    "num_dense_layers is -1",
		layers + `,"num_dense_layers":1,"routed_scaling_factor":0`:                           "routed_scaling_factor is 0",
		layers + `,"num_dense_layers":1,"routed_scaling_factor":-1`:                          "routed_scaling_factor is -1",
		layers + `,"num_dense_layers":1,"use_expert_bias":"yes"`:                             "use_expert_bias",
		layers + `,"num_dense_layers":1,"num_experts_per_tok":33`:                            "num_experts_per_tok is 33",
		layers + `,"num_dense_layers":1,"conv_L_cache":9`:                                    "conv_L_cache is 9",
		`"layer_types":["conv"],"num_hidden_layers":1000000000,"num_dense_layers":999999999`: "layer_types must list",
	} {
		if _, err := ParseJSON([]byte(`{"model_type":"lfm2_moe",` + json + `}`)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %s", json, err, want)
		}
	}
	for _, change := range []func(m *Mixture){
		func(m *Mixture) { m.Sigmoid = nil },
		func(m *Mixture) { m.Dense = []int{1} },
		func(m *Mixture) { m.Step = 2 },
	} {
		c := tinyConfig(LFM2MoE)
		change(c.Mixture)
		if err := c.Validate(); err == nil {
			t.Errorf("%+v was accepted", *c.Mixture)
		}
	}
	c := tinyConfig(Qwen3MoE)
	c.Mixture.Sigmoid = &SigmoidRouter{Scale: 1}
	if err := c.Validate(); err == nil {
		t.Error("sigmoids in Qwen 3 were accepted")
	}
}

// TestLFM2MoEGGUF reads the keys that llama.cpp's converter writes, and refuses changes of them.
func TestLFM2MoEGGUF(t *testing.T) {
	base := map[string]any{"general.architecture": "lfm2moe", "lfm2moe.embedding_length": int64(32), "lfm2moe.block_count": int64(3), "lfm2moe.attention.head_count": int64(4),
		"lfm2moe.attention.head_count_kv": []int64{0, 2, 0}, "lfm2moe.feed_forward_length": int64(48), "lfm2moe.context_length": int64(64),
		"lfm2moe.shortconv.l_cache": int64(3), "lfm2moe.attention.layer_norm_rms_epsilon": 1e-5, "lfm2moe.rope.freq_base": 1e6, "lfm2moe.expert_count": int64(6),
		"lfm2moe.expert_used_count": int64(2), "lfm2moe.expert_feed_forward_length": int64(16), "lfm2moe.expert_gating_func": int64(2),
		"lfm2moe.leading_dense_block_count": int64(2)}
	for _, one := range []struct {
		key   string
		value any
		want  string
		dense []int
	}{
		{"context_length", int64(64), "", []int{0, 1}},
		{"leading_dense_block_count", nil, "", nil},
		{"leading_dense_block_count", int64(0), "", nil},
		{"leading_dense_block_count", int64(3), "leading_dense_block_count is 3: must be below block_count 3", nil},
		{"leading_dense_block_count", int64(-1), "leading_dense_block_count is -1", nil},
		{"expert_gating_func", int64(1), "expert_gating_func is 1", nil},
		{"expert_gating_func", nil, "expert_gating_func is missing", nil},
		{"expert_weights_scale", 1.0, "", []int{0, 1}},
		{"expert_weights_scale", 0.0, "", []int{0, 1}},
		{"expert_weights_scale", 2.5, "expert_weights_scale is 2.5", nil},
		{"expert_group_count", int64(1), "", []int{0, 1}},
		{"expert_group_count", int64(2), "expert_group_count is 2", nil},
		{"expert_used_count", int64(7), "num_experts_per_tok is 7", nil},
		{"expert_count", nil, "expert_count is missing", nil},
		{"shortconv.l_cache", int64(1), "l_cache is 1", nil},
		{"attention.head_count_kv", []int64{0, 2}, "lists 2 layers", nil},
	} {
		changed := maps.Clone(base)
		if changed["lfm2moe."+one.key] = one.value; one.value == nil {
			delete(changed, "lfm2moe."+one.key)
		}
		c, err := FromGGUF(changed, map[string][]int64{ggufEmbedding: {100, 32}}, nil)
		if one.want != "" {
			golden.WantError(t, err, one.want)
			continue
		}
		if err != nil || c.Family != LFM2MoE {
			t.Errorf("%s %v: %v", one.key, one.value, err)
			continue
		}
		m := c.Mixture
		if !slices.Equal(m.Dense, one.dense) || *m.Sigmoid != (SigmoidRouter{true, 1}) || !m.Normalise || m.Experts != 6 || m.FFN != 16 || c.FFN != 48 {
			t.Errorf("%s %v: %+v", one.key, one.value, *m)
		}
		if !slices.Equal(c.ShortConv.Layers, []bool{true, false, true}) || c.KVHeads != 2 {
			t.Errorf("convolutions %+v, %d heads of keys", c.ShortConv, c.KVHeads)
		}
	}
}
