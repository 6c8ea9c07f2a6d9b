package arch

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestGatedDelta checks which layers have a gated delta rule, and its sizes.
func TestGatedDelta(t *testing.T) {
	for _, c := range []struct {
		json string
		want string // one letter per layer: d for a delta rule, a for attention
	}{
		{`{"model_type":"qwen3_5_text","num_hidden_layers":8}`, "dddaddda"},
		{`{"model_type":"qwen3_5_text","num_hidden_layers":5,"full_attention_interval":2}`, "dadad"},
		{`{"model_type":"qwen3_5_text","num_hidden_layers":3,"full_attention_interval":2,"layer_types":["full_attention","linear_attention","linear_attention"]}`, "add"},
		{`{"model_type":"qwen3_5_text","num_hidden_layers":2,"full_attention_interval":1}`, "aa"},
		{`{"model_type":"qwen3_5_moe_text","num_hidden_layers":4,"layer_types":null}`, "ddda"},
	} {
		cfg, err := ParseJSON([]byte(c.json))
		if err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		var got strings.Builder
		for i := range cfg.Layers {
			got.WriteString(map[bool]string{true: "d", false: "a"}[cfg.Layer(i).Recurs()])
		}
		if r, _ := cfg.Layer(0).Rotary(); got.String() != c.want || r.Dim != 64 {
			t.Errorf("%s: layers %s, want %s; %d dimensions are rotated", c.json, got.String(), c.want, r.Dim)
		}
	}
}

func TestGatedDeltaRefusals(t *testing.T) {
	for _, c := range []struct {
		json string
		want []string
	}{
		{`"attn_output_gate":false`, []string{"attn_output_gate", "gate"}},
		{`"full_attention_interval":0`, []string{"full_attention_interval", "at least 1"}},
		{`"layer_types":["linear_attention"]`, []string{"layer_types", "4 layers"}},
		{`"layer_types":["linear_attention","conv","full_attention","full_attention"]`, []string{"layer_types[1]", "conv"}},
		{`"layer_types":["linear_attention","linear_attention","linear_attention","linear_attention"]`, []string{"layer_types", "full_attention"}},
		{`"linear_key_head_dim":0`, []string{"linear_key_head_dim", "1 to 256"}},
		{`"linear_value_head_dim":257`, []string{"linear_value_head_dim", "257"}},
		{`"linear_conv_kernel_dim":9`, []string{"linear_conv_kernel_dim", "1 to 8"}},
		{`"linear_num_value_heads":24`, []string{"linear_num_value_heads 24", "linear_num_key_heads 16"}},
		{`"linear_num_key_heads":2147483647`, []string{"linear_num_key_heads"}},
	} {
		_, err := ParseJSON([]byte(`{"model_type":"qwen3_5_text","num_hidden_layers":4,` + c.json + `}`))
		golden.WantError(t, err, c.want...)
	}
	if _, err := ParseJSON([]byte(`{"model_type":"qwen3","num_hidden_layers":1,"layer_types":["linear_attention"]}`)); err == nil {
		t.Error("qwen3 has a layer of linear attention")
	}
}
