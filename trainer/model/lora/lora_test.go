package lora

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

var base = arch.Config{Family: arch.Llama, VocabSize: 32, Hidden: 16, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 4, FFN: 24,
	RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 64}

func names(l *Layout) (all []string) {
	for _, m := range l.Modules() {
		all = append(all, strings.TrimPrefix(m.Name, "model.layers."))
	}
	slices.Sort(all)
	return all
}

// The expected modules are the ones that PEFT's inject_adapter_in_model adapts with the same settings.
func TestTargets(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
		want []string
	}{
		{"ends", Spec{Targets: Targets{Names: []string{"q_proj", "mlp.up_proj"}}, Layers: []int{1}}, []string{"1.mlp.up_proj", "1.self_attn.q_proj"}},
		{"an end begins after a dot", Spec{Targets: Targets{Names: []string{"1.self_attn.q_proj", "0.mlp.down_proj"}}}, []string{"0.mlp.down_proj", "1.self_attn.q_proj"}},
		{"whole names", Spec{Targets: Targets{Names: []string{"model.layers.2.mlp.gate_proj"}}}, []string{"2.mlp.gate_proj"}},
		{"whole names are not limited to layers", Spec{Targets: Targets{Names: []string{"model.layers.2.mlp.gate_proj", "o_proj"}}, Layers: []int{0}}, []string{"0.self_attn.o_proj", "2.mlp.gate_proj"}},
		{"a regular expression matches whole names", Spec{Targets: Targets{Pattern: `.*\.[02]\..*(q|v)_proj`}}, []string{"0.self_attn.q_proj", "0.self_attn.v_proj", "2.self_attn.q_proj", "2.self_attn.v_proj"}},
		{"alternatives match whole names, too", Spec{Targets: Targets{Pattern: `model\.layers\.0\.mlp\.up_proj|.*2\.mlp\.up_proj`}}, []string{"0.mlp.up_proj", "2.mlp.up_proj"}},
		{"excluded", Spec{Targets: Targets{Names: []string{"o_proj", "k_proj"}}, Exclude: Targets{Names: []string{"k_proj", "model.layers.1.self_attn.o_proj"}}}, []string{"0.self_attn.o_proj", "2.self_attn.o_proj"}},
		{"excluded by an expression", Spec{Targets: Targets{Names: []string{"o_proj"}}, Exclude: Targets{Pattern: `.*[12].*`}}, []string{"0.self_attn.o_proj"}},
	} {
		c.spec.R, c.spec.Alpha = 2, 4
		l, err := c.spec.Layout(base)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := names(l); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	all := Spec{R: 1, Alpha: 1, Targets: Targets{Pattern: "All-Linear"}}
	if l, err := all.Layout(base); err != nil || len(l.Modules()) != 3*7 || len(l.Maps) != 3*4 {
		t.Errorf("all-linear: %v", err)
	}
}

// TestTargetsOfHybrids: as PEFT does, adapters adapt the projections around a convolution and not its taps.
func TestTargetsOfHybrids(t *testing.T) {
	hybrid := base
	hybrid.Family, hybrid.Layers, hybrid.ShortConv = arch.LFM2, 2, &arch.ShortConv{Layers: []bool{true, false}, Width: 3, Bias: true}
	l, err := Spec{R: 2, Alpha: 4, Targets: Targets{Pattern: AllLinear}}.Layout(hybrid)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0.conv.in_proj", "0.conv.out_proj", "0.feed_forward.w1", "0.feed_forward.w2", "0.feed_forward.w3", "1.feed_forward.w1", "1.feed_forward.w2",
		"1.feed_forward.w3", "1.self_attn.k_proj", "1.self_attn.out_proj", "1.self_attn.q_proj", "1.self_attn.v_proj"}
	if got := names(l); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, err := (Spec{R: 2, Alpha: 4, Targets: Targets{Names: []string{"conv.conv"}}}).Layout(hybrid); err == nil {
		t.Error("an adapter of a convolution's taps was accepted")
	}
}

// TestTargetsOfGatedDeltaRules: adapters adapt all projections around a gated delta rule, as PEFT's do.
func TestTargetsOfGatedDeltaRules(t *testing.T) {
	c := base
	c.Family, c.Layers, c.HeadDim = arch.Qwen35, 2, 8
	c.GatedDelta = &arch.GatedDelta{Layers: []bool{true, false}, KeyHeads: 1, ValueHeads: 2, KeyDim: 4, ValueDim: 6, Width: 4}
	l, err := Spec{R: 2, Alpha: 4, Targets: Targets{Pattern: AllLinear}}.Layout(c)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0.linear_attn.in_proj_a", "0.linear_attn.in_proj_b", "0.linear_attn.in_proj_qkv", "0.linear_attn.in_proj_z", "0.linear_attn.out_proj",
		"0.mlp.down_proj", "0.mlp.gate_proj", "0.mlp.up_proj", "1.mlp.down_proj", "1.mlp.gate_proj", "1.mlp.up_proj",
		"1.self_attn.k_proj", "1.self_attn.o_proj", "1.self_attn.q_proj", "1.self_attn.v_proj"}
	if got := names(l); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The first pattern that matches the end of a name wins.
func TestOverrides(t *testing.T) {
	s := Spec{R: 4, Alpha: 8, RSLoRA: true, Targets: Targets{Names: []string{"q_proj", "up_proj"}},
		Ranks:  []Override{{`layers.1.self_attn.q_proj`, 16}, {`q_proj`, 9}, {`_proj`, 1}},
		Alphas: []Override{{`^model\.layers\.0\..*`, 3}, {`0.mlp.up_proj`, 5}}}
	l, err := s.Layout(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range l.Modules() {
		want := map[string][2]float64{"0.self_attn.q_proj": {9, 3.0 / 3}, "1.self_attn.q_proj": {16, 2}, "2.self_attn.q_proj": {9, 8.0 / 3},
			"0.mlp.up_proj": {4, 1.5}, "1.mlp.up_proj": {4, 4}, "2.mlp.up_proj": {4, 4}}[strings.TrimPrefix(m.Name, "model.layers.")]
		if float64(m.R) != want[0] || m.Scale != want[1] {
			t.Errorf("%s: r %d, scale %v; want %v", m.Name, m.R, m.Scale, want)
		}
	}
}

// Every element of the buffer belongs to exactly one tensor, and the A of modules that share a product form one matrix.
func TestLayoutTiles(t *testing.T) {
	s := Spec{R: 3, Alpha: 1, Targets: Targets{Pattern: AllLinear}, Ranks: []Override{{"k_proj", 5}}}
	l, err := s.Layout(base)
	if err != nil {
		t.Fatal(err)
	}
	owners := make([]int, l.Numel)
	for _, p := range l.Tensors() {
		for i := range p.Numel() {
			owners[p.Offset+i]++
		}
	}
	for i, n := range owners {
		if n != 1 {
			t.Fatalf("element %d belongs to %d tensors", i, n)
		}
	}
	q, k, v := l.Maps[0].Modules[0], l.Maps[0].Modules[1], l.Maps[0].Modules[2]
	if q.A != 0 || k.A != 3*16 || v.A != 8*16 || k.Row != 16 || v.Row != 24 {
		t.Errorf("%+v %+v %+v", q, k, v)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want []string
	}{
		{Spec{R: 0, Alpha: 1}, []string{"r is 0"}},
		{Spec{R: 1, Alpha: -1}, []string{"alpha"}},
		{Spec{R: 1, Alpha: 1}, []string{"targets are missing"}},
		{Spec{R: 1, Alpha: 1, Targets: Targets{Names: []string{"q_proj", "fc1"}}}, []string{"fc1", "not a module of the base model", "q_proj"}},
		{Spec{R: 1, Alpha: 1, Targets: Targets{Pattern: "q_proj"}}, []string{"q_proj names no module"}},
		{Spec{R: 1, Alpha: 1, Targets: Targets{Pattern: "("}}, []string{"regular expression"}},
		{Spec{R: 1, Alpha: 1, Targets: Targets{Pattern: "(?!x).*"}}, []string{"RE2"}},
		{Spec{R: 1, Alpha: 1, Targets: Targets{Names: []string{"lm_head"}}}, []string{"lm_head", "not supported"}},
		{Spec{R: 1, Alpha: 1, Targets: Targets{Names: []string{"q_proj"}}, Ranks: []Override{{"q_proj", 0.5}}}, []string{"rank_pattern", "0.5"}},
	} {
		_, err := c.spec.Layout(base)
		golden.WantError(t, err, c.want...)
	}
}

const config = `{"peft_type": "LORA", "r": 4, "lora_alpha": 8.5, "use_rslora": true, "lora_dropout": 0.1, "bias": "none",
 "target_modules": ["v_proj", "q_proj"], "rank_pattern": {"b": 2, "a": 3}, "base_model_name_or_path": "x/y", "use_dora": false,
 "init_lora_weights": "gaussian", "layers_to_transform": [0, 2], "exclude_modules": "x.*", "peft_version": "0.21.2", "a_new_key": null}`

// JSON writes a configuration that ParsePEFT reads back.
func TestPEFTConfig(t *testing.T) {
	p, err := ParsePEFT([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	want := Spec{R: 4, Alpha: 8.5, RSLoRA: true, Targets: Targets{Names: []string{"v_proj", "q_proj"}}, Exclude: Targets{Pattern: "x.*"},
		Layers: []int{0, 2}, Ranks: []Override{{"b", 2}, {"a", 3}}}
	if !reflect.DeepEqual(p, PEFT{Spec: want, Base: "x/y", Dropout: 0.1}) {
		t.Errorf("%+v", p)
	}
	again, err := ParsePEFT(PEFT{Spec: want, Base: "x/y", Revision: "v1"}.JSON(base))
	if err != nil || !reflect.DeepEqual(again.Spec, want) {
		t.Errorf("%+v, %v", again, err)
	}
	all := Spec{R: 1, Alpha: 1, Targets: Targets{Pattern: AllLinear}}
	again, err = ParsePEFT(PEFT{Spec: all, Base: "x"}.JSON(base))
	if err != nil || len(again.Spec.Targets.Names) != 7 {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestPEFTDefaults: r and lora_alpha are 8 in PEFT if the keys are absent, and 0 is refused.
func TestPEFTDefaults(t *testing.T) {
	p, err := ParsePEFT([]byte(`{"peft_type": "LORA", "target_modules": ["q_proj"]}`))
	if err != nil || p.Spec.R != 8 || p.Spec.Alpha != 8 {
		t.Errorf("%+v, %v", p, err)
	}
	_, err = ParsePEFT([]byte(`{"peft_type": "LORA", "target_modules": ["q_proj"], "r": 0}`))
	golden.WantError(t, err, "r is 0")
}

// TestPEFTAccepts: keys that change no result are accepted, and so is the usual name of the layers.
func TestPEFTAccepts(t *testing.T) {
	for _, one := range [][2]string{
		{"runtime_config", `{"ephemeral_gpu_offload": false}`}, {"eva_config", `{"rho": 2.0, "tau": 0.99}`}, {"loftq_config", `{"loftq_bits": 4}`}, {"corda_config", `{"cache_file": "x"}`},
		{"lora_ga_config", `{"direction": "ArB2r"}`}, {"layers_pattern", `["blocks", "layers"]`}, {"init_lora_weights", `"eva"`},
		{"init_lora_weights", `"mica"`}, {"velora_config", `{"num_groups": 4}`}, {"ensure_weight_tying", `true`},
	} {
		var keys map[string]json.RawMessage
		if err := json.Unmarshal([]byte(config), &keys); err != nil {
			t.Fatal(err)
		}
		keys[one[0]] = json.RawMessage(one[1])
		text, _ := json.Marshal(keys)
		if _, err := ParsePEFT(text); err != nil {
			t.Errorf("%s: %v", one, err)
		}
	}
}

// Keys that this program does not support are refused by name.
func TestPEFTRefusals(t *testing.T) {
	for key, value := range map[string]string{
		"use_dora": `true`, "bias": `"all"`, "modules_to_save": `["lm_head"]`, "fan_in_fan_out": `true`, "init_lora_weights": `"pissa"`,
		"target_parameters": `["x"]`, "trainable_token_indices": `[1]`, "layer_replication": `[[0, 2]]`, "lora_bias": `true`,
		"task_type": `"SEQ_CLS"`, "alora_invocation_tokens": `[1]`, "a_new_key": `{"x": 1}`, "layers_pattern": `["blocks", "h"]`,
		"r": `2.5`, "lora_alpha": `"x"`, "target_modules": `3`, "peft_type": `"IA3"`, "rank_pattern": `{"x": "y"}`,
	} {
		var keys map[string]json.RawMessage
		if err := json.Unmarshal([]byte(config), &keys); err != nil {
			t.Fatal(err)
		}
		keys[key] = json.RawMessage(value)
		text, _ := json.Marshal(keys)
		_, err := ParsePEFT(text)
		golden.WantError(t, err, key)
	}
}

// In transformers 5, experts and routers are not modules. So target_modules names only other modules with the same ends.
func TestMatchLeavesExperts(t *testing.T) {
	cfg, err := arch.ParseJSON([]byte(`{"model_type":"qwen2_moe","vocab_size":32,"hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,
		"num_attention_heads":4,"num_key_value_heads":2,"num_experts":3,"num_experts_per_tok":2,"moe_intermediate_size":8,
		"shared_expert_intermediate_size":8,"mlp_only_layers":[0],"max_position_embeddings":64}`))
	if err != nil {
		t.Fatal(err)
	}
	spec := Spec{R: 1, Alpha: 1, Targets: Targets{Names: []string{"q_proj", "gate_proj", "gate"}}}
	modules := []string{"model.layers.0.mlp.gate_proj", "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.shared_expert.gate_proj",
		"model.layers.1.self_attn.q_proj"}
	l, err := spec.Match(cfg, modules)
	if err != nil || len(l.Modules()) != len(modules) || len(spec.Targets.Names) != len(modules) {
		t.Errorf("%v, %+v", err, spec)
	}
	_, err = spec.Match(cfg, append(modules, "model.layers.1.mlp.experts.0.gate_proj"))
	golden.WantError(t, err, "model.layers.1.mlp.experts.0.gate_proj", "adapters of experts")
}

// If target_modules is an expression that only Python supports, Match takes the modules from the names of the tensors.
func TestMatch(t *testing.T) {
	for _, pattern := range []string{`(?!.*1).*q_proj`, `.*(?<!visual\.)(?:q_proj|v_proj)`, `.*(?<=attn\.)q_proj`, `.*+q_proj`, `.{1,2000}q_proj`} {
		spec := Spec{R: 1, Alpha: 1, Targets: Targets{Pattern: pattern}}
		l, err := spec.Match(base, []string{"model.layers.0.self_attn.q_proj"})
		if err != nil || len(l.Modules()) != 1 || len(spec.Targets.Names) != 1 {
			t.Errorf("%v, %+v", err, spec)
		}
	}
	several := Spec{R: 1, Alpha: 1, Targets: Targets{Names: []string{"q_proj", "fc1"}}, Layers: []int{0}}
	if _, err := several.Match(base, []string{"model.layers.0.self_attn.q_proj"}); err != nil {
		t.Error(err)
	}
	_, err := several.Match(base, []string{"model.layers.0.self_attn.v_proj"})
	golden.WantError(t, err, "v_proj", "target_modules")
	if _, err := several.Match(base, nil); err == nil || errors.Is(err, errSyntax) {
		t.Errorf("no tensors: %v", err)
	}
}
