package arch

import (
	"slices"
	"strings"
	"testing"
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
