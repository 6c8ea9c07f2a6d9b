package arch

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func TestWindows(t *testing.T) {
	for _, c := range []struct {
		json string
		want []int
	}{
		{`{"model_type":"llama","sliding_window":5,"num_hidden_layers":2}`, nil},
		{`{"model_type":"mistral","num_hidden_layers":2}`, []int{4096, 4096}},
		{`{"model_type":"mistral","num_hidden_layers":2,"sliding_window":null}`, nil},
		{`{"model_type":"phi3","num_hidden_layers":2}`, nil},
		{`{"model_type":"phi3","num_hidden_layers":2,"sliding_window":7}`, []int{7, 7}},
		{`{"model_type":"qwen2","num_hidden_layers":30,"use_sliding_window":true}`, append(make([]int, 28), 4096, 4096)},
		{`{"model_type":"qwen2","num_hidden_layers":2,"max_window_layers":0,"sliding_window":7}`, nil},
		{`{"model_type":"qwen2","num_hidden_layers":2,"max_window_layers":0,"sliding_window":null,"use_sliding_window":true}`, nil},
		{`{"model_type":"qwen3","num_hidden_layers":3,"max_window_layers":1,"sliding_window":7,"use_sliding_window":true}`, []int{0, 7, 7}},
		{`{"model_type":"qwen3","num_hidden_layers":2,"max_window_layers":0,"sliding_window":7,"use_sliding_window":true,"layer_types":["sliding_attention","full_attention"]}`, []int{7, 0}},
		{`{"model_type":"qwen3_moe","num_hidden_layers":2,"sliding_window":7,"use_sliding_window":true}`, []int{7, 7}},
		{`{"model_type":"qwen2_moe","num_hidden_layers":2,"sliding_window":0,"use_sliding_window":false}`, nil}, // as transformers saves it
		{`{"model_type":"gemma3_text","num_hidden_layers":7}`, []int{4096, 4096, 4096, 4096, 4096, 0, 4096}},
		{`{"model_type":"gemma3_text","num_hidden_layers":4,"sliding_window":9,"sliding_window_pattern":3}`, []int{9, 9, 0, 9}},
		{`{"model_type":"gemma3_text","num_hidden_layers":4,"sliding_window":9,"_sliding_window_pattern":2}`, []int{9, 9, 9, 9}},
		{`{"model_type":"gemma3_text","num_hidden_layers":2,"sliding_window":9,"sliding_window_pattern":1}`, nil},
		{`{"model_type":"gemma3_text","num_hidden_layers":2,"sliding_window":9,"sliding_window_pattern":1,"layer_types":["full_attention","sliding_attention"]}`, []int{0, 9}},
		{`{"model_type":"smollm3","num_hidden_layers":4,"sliding_window":9}`, nil},
		{`{"model_type":"smollm3","num_hidden_layers":4,"sliding_window":9,"use_sliding_window":true}`, []int{0, 0, 0, 9}},
		{`{"model_type":"smollm3","num_hidden_layers":2,"sliding_window":9,"layer_types":["sliding_attention","full_attention"]}`, []int{9, 0}},
	} {
		got, err := ParseJSON([]byte(c.json))
		if err != nil || !slices.Equal(got.Windows, c.want) {
			t.Errorf("%s: %v %v, want %v", c.json, got.Windows, err, c.want)
		}
	}
}

func TestRotary(t *testing.T) {
	scaling := &RopeLinear{Factor: 8}
	for _, c := range []struct {
		json string
		want []*Rotary // by layer; nil: none
	}{
		{`{"model_type":"smollm3","num_hidden_layers":4,"head_dim":16}`, []*Rotary{{2e6, 16, nil}, {2e6, 16, nil}, {2e6, 16, nil}, nil}},
		{`{"model_type":"smollm3","num_hidden_layers":2,"head_dim":16,"no_rope_layer_interval":1,"no_rope_layers":[0,1,1],"rope_theta":5}`, []*Rotary{nil, {5, 16, nil}}},
		{`{"model_type":"phi3","num_hidden_layers":1,"head_dim":16,"partial_rotary_factor":0.75}`, []*Rotary{{1e4, 12, nil}}},
		{`{"model_type":"phi3","num_hidden_layers":1,"head_dim":16,"rope_parameters":{"partial_rotary_factor":0.5,"rope_theta":9}}`, []*Rotary{{9, 8, nil}}},
		{`{"model_type":"llama","num_hidden_layers":1,"head_dim":16,"rope_theta":4,"rope_parameters":{"rope_theta":9,"rope_type":"linear","factor":8}}`, []*Rotary{{9, 16, scaling}}},
		{`{"model_type":"gemma3_text","num_hidden_layers":2,"sliding_window_pattern":2,"head_dim":16,"rope_scaling":{"rope_type":"linear","factor":8}}`,
			[]*Rotary{{1e4, 16, nil}, {1e6, 16, scaling}}},
		{`{"model_type":"gemma3_text","num_hidden_layers":2,"sliding_window_pattern":2,"head_dim":16,"rope_theta":3,"rope_local_base_freq":4}`,
			[]*Rotary{{4, 16, nil}, {3, 16, nil}}},
		{`{"model_type":"gemma3_text","num_hidden_layers":2,"sliding_window_pattern":2,"head_dim":16,"rope_theta":3,"rope_local_base_freq":4,
			"rope_parameters":{"full_attention":{"rope_type":"linear","factor":8,"rope_theta":5},"sliding_attention":{"rope_theta":6}}}`,
			[]*Rotary{{6, 16, nil}, {5, 16, scaling}}},
		{`{"model_type":"gemma3_text","num_hidden_layers":2,"sliding_window_pattern":2,"head_dim":16,"rope_theta":3,"rope_local_base_freq":4,
			"rope_parameters":{"full_attention":{"rope_type":"default"},"sliding_attention":null}}`,
			[]*Rotary{{4, 16, nil}, {3, 16, nil}}},
	} {
		cfg, err := ParseJSON([]byte(c.json))
		if err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		for i, want := range c.want {
			got, ok := cfg.Layer(i).Rotary()
			if ok != (want != nil) || ok && !reflect.DeepEqual(got, *want) {
				t.Errorf("%s: layer %d has %+v, %v", c.json, i, got, ok)
			}
		}
	}
}

// The expected numbers are from the paper's formulas, calculated by hand for theta 10000, 16 dimensions and 128 positions of pretraining.
func TestYaRN(t *testing.T) {
	for _, c := range []struct {
		json              string
		amplitude         float64
		kept, mixed, slow []int // planes
	}{
		// Planes with 32 turns and with 1 turn would be at -0.39 and 2.62: plane 0 does not
		// change, and planes from 3 on are slower by a factor of 8.
		{`"factor":8`, 0.1*math.Log(8) + 1, []int{0}, []int{1, 2}, []int{3, 7}},
		{`"factor":8,"attention_factor":1.5,"mscale":2,"mscale_all_dim":3`, 1.5, []int{0}, []int{1, 2}, []int{3, 7}},
		{`"factor":8,"mscale":2,"mscale_all_dim":3`, (0.2*math.Log(8) + 1) / (0.3*math.Log(8) + 1), []int{0}, []int{1}, []int{3}},
		{`"factor":8,"mscale":2,"mscale_all_dim":0`, 0.1*math.Log(8) + 1, []int{0}, []int{1}, []int{3}},
		{`"factor":0.5`, 1, []int{0}, []int{1}, []int{3}},
		{`"factor":null`, 0.1*math.Log(8) + 1, []int{0}, []int{1}, []int{3}},
		// Planes with 16 turns and with half a turn would be at 0.21 and 3.22. Without truncation, planes 0 and 4 are outside this range.
		{`"factor":8,"beta_fast":16,"beta_slow":0.5,"truncate":false`, 0.1*math.Log(8) + 1, []int{0}, []int{1, 2, 3}, []int{4}},
		{`"factor":8,"beta_fast":0,"beta_slow":null`, 0.1*math.Log(8) + 1, []int{0}, []int{1, 2}, []int{3}},
	} {
		cfg, err := ParseJSON([]byte(`{"model_type":"qwen3","head_dim":16,"max_position_embeddings":1024,"rope_scaling":{"type":"yarn","original_max_position_embeddings":128,` + c.json + `}}`))
		if err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		r, _ := cfg.Layer(0).Rotary()
		golden.Near(t, c.json, r.Amplitude(), c.amplitude, 1e-15)
		factor := cfg.Rope.Scaling.(*RopeYaRN).Factor
		freqs, plain := r.Frequencies(), Rotary{Theta: r.Theta, Dim: 16}.Frequencies()
		for _, i := range c.kept {
			golden.Near(t, c.json, freqs[i], plain[i], 1e-15)
		}
		for _, i := range c.slow {
			golden.Near(t, c.json, freqs[i], plain[i]/factor, 1e-15)
		}
		for _, i := range c.mixed {
			if low, high := min(plain[i], plain[i]/factor), max(plain[i], plain[i]/factor); !(low < freqs[i] && freqs[i] < high) {
				t.Errorf("%s: plane %d turns by %g, which is not between %g and %g", c.json, i, freqs[i], low, high)
			}
		}
	}
}

// If ranks divide the experts, trainer/model's forward pass supports no norm after them.
func TestNoNormAfterExperts(t *testing.T) {
	for name, f := range families {
		if f.defaults.Mixture == nil {
			continue
		}
		c := f.defaults
		c.Family, c.Layers, c.Mixture = name, 1, &Mixture{Experts: 2, PerToken: 1, FFN: 8, Step: 1}
		for _, leaf := range c.WithDefaults().Layout().Leaves {
			if leaf.Name == "layers.0.mlp_norm" {
				t.Errorf("%s has a norm after its experts", name)
			}
		}
	}
}
