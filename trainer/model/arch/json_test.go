package arch

import (
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func TestConfigDefaults(t *testing.T) {
	for _, c := range []struct {
		json string
		want Config
	}{
		{`{"model_type":"llama"}`, Config{Family: Llama, VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128,
			FFN: 11008, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 2048, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}}},
		{`{"architectures":["Qwen2ForCausalLM"],"num_key_value_heads":null,"num_attention_heads":16,"attention_bias":false}`,
			Config{Family: Qwen2, VocabSize: 151936, Hidden: 4096, Layers: 32, Heads: 16, KVHeads: 16, HeadDim: 256,
				FFN: 22016, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 32768}},
		{`{"model_type":"qwen3","hidden_size":1024,"tie_word_embeddings":true,"eos_token_id":[5,6],"pad_token_id":-1}`,
			Config{Family: Qwen3, VocabSize: 151936, Hidden: 1024, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128,
				FFN: 22016, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 32768, Tied: true, Tokens: SpecialTokens{EOS: []int32{5, 6}}}},
		{`{"model_type":"qwen3_moe","mlp_only_layers":null}`, Config{Family: Qwen3MoE, VocabSize: 151936, Hidden: 2048, Layers: 24, Heads: 32,
			KVHeads: 4, HeadDim: 64, FFN: 6144, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 32768,
			Mixture: &Mixture{Experts: 128, PerToken: 8, FFN: 768, Step: 1}}},
		{`{"model_type":"qwen3_moe","num_local_experts":9,"num_experts_per_tok":3,"moe_intermediate_size":7,"norm_topk_prob":true,"decoder_sparse_step":2,"mlp_only_layers":[3,1]}`,
			Config{Family: Qwen3MoE, VocabSize: 151936, Hidden: 2048, Layers: 24, Heads: 32, KVHeads: 4, HeadDim: 64, FFN: 6144, RMSEps: 1e-6,
				Rope: Rope{Theta: 10000}, MaxPosition: 32768, Mixture: &Mixture{Experts: 9, PerToken: 3, FFN: 7, Normalise: true, Dense: []int{3, 1}, Step: 2}}},
		{`{"model_type":"mistral","sliding_window":null}`, Config{Family: Mistral, VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8,
			HeadDim: 128, FFN: 14336, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 131072, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}}},
		{`{"model_type":"mistral","sliding_window":64,"max_position_embeddings":64,"head_dim":24}`, Config{Family: Mistral, VocabSize: 32000, Hidden: 4096,
			Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 24, FFN: 14336, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 64, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}, Windows: slices.Repeat([]int{64}, 32)}},
		{`{"model_type":"llama","rope_parameters":{"rope_theta":5e5,"rope_type":"llama3","factor":8,"low_freq_factor":1.0,"high_freq_factor":4,"original_max_position_embeddings":8192},"attention_bias":true,"mlp_bias":true,"eos_token_id":null,"bos_token_id":null}`,
			Config{Family: Llama, VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128,
				FFN: 11008, RMSEps: 1e-6, Rope: Rope{Theta: 5e5, Scaling: &RopeLlama3{8, 1, 4, 8192}}, MaxPosition: 2048, AttentionBias: true, MLPBias: true}},
		{`{"model_type":"ministral3","num_hidden_layers":2}`, Config{Family: Ministral3, VocabSize: 131072, Hidden: 4096, Layers: 2, Heads: 32, KVHeads: 8,
			HeadDim: 128, FFN: 14336, RMSEps: 1e-5, Rope: Rope{Theta: 1e6, Scaling: &RopeYaRN{16, 32, 1, 1, true, 16384}}, MaxPosition: 262144, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{11}},
			Queries: Queries{Growth: QueryGrowth{0.1, 16384}}}},
		{`{"model_type":"granite","attention_multiplier":0.015625,"residual_multiplier":0.22,"head_dim":null}`, Config{Family: Granite, VocabSize: 32000,
			Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128, FFN: 11008, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 2048,
			Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}}, Multipliers: Multipliers{Residual: 0.22, Attention: 0.015625}}},
		{`{"model_type":"olmo3","num_hidden_layers":4,"attention_bias":true}`, Config{Family: OLMo3, VocabSize: 50304, Hidden: 4096, Layers: 4, Heads: 32, KVHeads: 32,
			HeadDim: 128, FFN: 11008, RMSEps: 1e-5, Rope: Rope{Theta: 5e5, LocalTheta: 5e5}, MaxPosition: 2048, Tokens: SpecialTokens{EOS: []int32{50279}, Pad: []int32{1}},
			AttentionBias: true, Windows: []int{4096, 4096, 4096, 0}}},
		{`{"model_type":"hunyuan_v1_dense","head_dim":64,"rope_scaling":{"type":"dynamic","alpha":1000,"factor":1.0}}`, Config{Family: HunYuan, VocabSize: 290943,
			Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 64, FFN: 11008, RMSEps: 1e-5, Rope: Rope{Theta: 10000, Scaling: &RopeAlpha{1000}}, MaxPosition: 2048,
			Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{0}}}},
		{`{"model_type":"exaone4","num_hidden_layers":4,"sliding_window":9}`, Config{Family: EXAONE4, VocabSize: 102400, Hidden: 4096, Layers: 4, Heads: 32,
			KVHeads: 32, HeadDim: 128, FFN: 16384, RMSEps: 1e-5, Rope: Rope{Theta: 10000, Without: []bool{false, false, false, true}}, MaxPosition: 2048, Tokens: SpecialTokens{BOS: []int32{0}, EOS: []int32{2}},
			Windows: []int{9, 9, 9, 0}}},
		{`{"model_type":"exaone4","num_hidden_layers":2,"sliding_window":9,"layer_types":["full_attention","full_attention"]}`, Config{Family: EXAONE4,
			VocabSize: 102400, Hidden: 4096, Layers: 2, Heads: 32, KVHeads: 32, HeadDim: 128, FFN: 16384, RMSEps: 1e-5, Rope: Rope{Theta: 10000, Without: []bool{true, true}},
			MaxPosition: 2048, Tokens: SpecialTokens{BOS: []int32{0}, EOS: []int32{2}}}},
		{`{"model_type":"mixtral","num_hidden_layers":1,"intermediate_size":9,"num_local_experts":3}`, Config{Family: Mixtral, VocabSize: 32000, Hidden: 4096, Layers: 1,
			Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 9, RMSEps: 1e-5, Rope: Rope{Theta: 1e6}, MaxPosition: 131072, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}},
			Mixture: &Mixture{Experts: 3, PerToken: 2, FFN: 9, Normalise: true, Step: 1}}},
		{`{"model_type":"qwen2_moe","num_hidden_layers":4,"use_sliding_window":true,"max_window_layers":3,"sliding_window":7}`, Config{Family: Qwen2MoE, VocabSize: 151936,
			Hidden: 2048, Layers: 4, Heads: 16, KVHeads: 16, HeadDim: 128, FFN: 5632, RMSEps: 1e-6, Rope: Rope{Theta: 10000}, MaxPosition: 32768, AttentionBias: true,
			Windows: []int{7, 0, 7, 0}, Mixture: &Mixture{Experts: 60, PerToken: 4, FFN: 1408, Shared: 5632, Step: 1}}},
		{`{"model_type":"gpt_oss","num_hidden_layers":3,"num_local_experts":5,"intermediate_size":9}`, Config{Family: GPTOSS, VocabSize: 201088, Hidden: 2880, Layers: 3,
			Heads: 64, KVHeads: 8, HeadDim: 64, FFN: 9, RMSEps: 1e-5, Rope: Rope{Theta: 150000, Scaling: &RopeYaRN{32, 32, 1, 0.1*math.Log(32) + 1, false, 4096}}, MaxPosition: 131072, AttentionBias: true, Windows: []int{128, 0, 128},
			Mixture: &Mixture{Experts: 5, PerToken: 4, FFN: 9, Normalise: true, Step: 1}}},
		{`{"model_type":"phi3","num_hidden_layers":1,"head_dim":4,"rope_scaling":{"type":"su","short_factor":[1,2],"long_factor":[1,9]},"max_position_embeddings":8192}`, Config{Family: Phi3,
			VocabSize: 32064, Hidden: 3072, Layers: 1, Heads: 32, KVHeads: 32, HeadDim: 4, FFN: 8192, RMSEps: 1e-5, Rope: Rope{Theta: 10000, Scaling: &RopeLong{[]float64{1, 2}, []float64{1, 9}, 0, 0, 4096, 8192}}, MaxPosition: 4096,
			Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{32000}, Pad: []int32{32000}}}},
		{`{"model_type":"ernie4_5","use_bias":true,"attention_bias":false}`, Config{Family: ERNIE45, VocabSize: 103424, Hidden: 1024, Layers: 18, Heads: 16,
			KVHeads: 2, HeadDim: 128, FFN: 3072, RMSEps: 1e-5, Rope: Rope{Theta: 5e5}, MaxPosition: 131072, Tied: true, Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{0}},
			AttentionBias: true, MLPBias: true}},
		{`{"model_type":"glm4","num_hidden_layers":1,"eos_token_id":null}`, Config{Family: GLM4, VocabSize: 151552, Hidden: 4096, Layers: 1, Heads: 32, KVHeads: 2,
			HeadDim: 128, FFN: 13696, RMSEps: 1.5625e-7, Rope: Rope{Theta: 10000, Dim: 64}, MaxPosition: 131072, AttentionBias: true, Tokens: SpecialTokens{Pad: []int32{151329}}}},
	} {
		got, err := ParseJSON([]byte(c.json))
		got.Raw = nil
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v %v\nwant %+v", c.json, got, err, c.want)
		}
	}
}

// refused is a config.json and the words in its error.
type refused struct {
	json string
	want []string
}

func wantRefused(t *testing.T, all []refused) {
	t.Helper()
	for _, c := range all {
		_, err := ParseJSON([]byte(c.json))
		golden.WantError(t, err, c.want...)
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

func TestConfigRefused(t *testing.T) {
	wantRefused(t, []refused{
		{``, []string{"json: the text ends"}},
		{`[]`, []string{"object"}},
		{`{"model_type":"llama"} x`, []string{"follows"}},
		{`{"model_type":"llama","vocab_size":5,"vocab_size":6}`, []string{"vocab_size", "twice"}},
		{"{\"model_type\":\"\xff\"}", []string{"UTF-8"}},
		{strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), []string{"nested"}},
		{`{"` + strings.Repeat("k", 2000) + `":1}`, []string{"2000 bytes"}},
		{`{}`, []string{"model_type"}},
		{`{"Model_Type":"llama"}`, []string{"model_type"}},
		{`{"model_type":"gpt2"}`, []string{"model_type", "gpt2"}},
		{`{"model_type":"` + strings.Repeat("x", 5000) + `"}`, []string{"model_type"}},
		{`{"model_type":"granitemoe"}`, []string{"granitemoe", "mixture", "qwen3_moe"}},
		{`{"model_type":"mixtral","num_local_experts":0}`, []string{"num_experts is 0"}},
		{`{"model_type":"gpt_oss","swiglu_limit":9.0}`, []string{"swiglu_limit 9 is not supported", "only 7"}},
		{`{"model_type":"gpt_oss","swiglu_alpha":1}`, []string{"swiglu_alpha 1 is not supported", "only 1.702"}},
		{`{"model_type":"gpt_oss","sliding_window":null}`, []string{"sliding_window is 0 in layer 0"}},
		{`{"model_type":"qwen2_moe","shared_expert_intermediate_size":0}`, []string{"shared_expert_intermediate_size is 0"}},
		{`{"model_type":"qwen3_moe","num_experts_per_tok":129}`, []string{"num_experts_per_tok", "64"}},
		{`{"model_type":"qwen3_moe","num_experts":8,"num_local_experts":9}`, []string{"num_experts", "num_local_experts"}},
		{`{"model_type":"qwen3_moe","num_hidden_layers":1024,"num_experts":4096,"moe_intermediate_size":1,"hidden_size":2,"num_attention_heads":1,"num_key_value_heads":1,"head_dim":2}`, []string{"1024 layers of 4096 experts"}},
		{`{"model_type":"qwen3_moe","num_experts":0}`, []string{"num_experts"}},
		{`{"model_type":"qwen3_moe","decoder_sparse_step":0}`, []string{"decoder_sparse_step"}},
		{`{"model_type":"qwen3_moe","decoder_sparse_step":25}`, []string{"no layer"}},
		{`{"model_type":"qwen3_moe","mlp_only_layers":[24]}`, []string{"mlp_only_layers", "24"}},
		{`{"model_type":"qwen3_moe","mlp_only_layers":["0"]}`, []string{"mlp_only_layers"}},
		{`{"model_type":"qwen3_moe","moe_intermediate_size":1000000}`, []string{"moe_intermediate_size", "at most"}},
		{`{"model_type":"llama","num_local_experts":8}`, []string{"num_local_experts"}},
		{`{"model_type":"llama","architectures":["LlamaForSequenceClassification"]}`, []string{"LlamaForSequenceClassification"}},
		{`{"architectures":["MambaForCausalLM"]}`, []string{"MambaForCausalLM"}},
		{`{"model_type":"llama","quantization_config":{"bits":4}}`, []string{"quantization_config.quant_method is missing", "GGUF"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"awq","bits":4}}`, []string{"quantization_config.quant_method", "awq", "GGUF"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"gptq"}}`, []string{"gptq", "the checkpoint that was quantised"}},
		{`{"model_type":"llama","quantization_config":{"load_in_4bit":true}}`, []string{"bitsandbytes"}},
		{`{"model_type":"llama","quantization_config":{"load_in_8bit":true}}`, []string{"bitsandbytes"}},
		{`{"model_type":"llama","quantization_config":7}`, []string{"quantization_config is not an object"}},
		{`{"model_type":"llama","quantization":{"group_size":64,"bits":4}}`, []string{"MLX"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"fp8","fmt":"e5m2"}}`, []string{"fmt", "e5m2"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"fp8","weight_block_size":[128]}}`, []string{"weight_block_size", "two"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"fp8","weight_block_size":[0,128]}}`, []string{"weight_block_size"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"fp8","weight_block_size":[128,2000000000]}}`, []string{"weight_block_size"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized"}}`, []string{"pack-quantized"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"compressed-tensors"}}`, []string{"config_groups is missing"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"num_bits":8,"type":"int","strategy":"channel"}}}}}`, []string{"config_groups.a.weights.type", "int"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"num_bits":8,"type":"float","strategy":"group"}}}}}`, []string{"strategy", "group"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"num_bits":8,"type":"float","strategy":"block"}}}}}`, []string{"block_structure is missing"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24"},"config_groups":{}}}`, []string{"sparsity_config"}},
		{`{"model_type":"llama","quantization_config":{"quant_method":"compressed-tensors","sparsity_config":{"format":"dense","global_sparsity":0.1}}}`, []string{"config_groups is missing"}},
	})
}

func TestSettingsRefused(t *testing.T) {
	wantRefused(t, []refused{
		{`{"model_type":"llama","hidden_act":"gelu"}`, []string{"hidden_act", "gelu"}},
		{`{"model_type":"llama","use_sliding_window":true}`, []string{"use_sliding_window", "llama"}},
		{`{"model_type":"olmo2","layer_types":["full_attention","sliding_attention"]}`, []string{"layer_types[1]", "olmo2"}},
		{`{"model_type":"qwen3","layer_types":["full_attention","sliding_attention"]}`, []string{"layer_types", "32"}},
		{`{"model_type":"qwen3","num_hidden_layers":1,"layer_types":["chunked_attention"]}`, []string{"layer_types[0]", "chunked_attention"}},
		{`{"model_type":"qwen3","num_hidden_layers":1,"layer_types":["sliding_attention"]}`, []string{"sliding_window", "layer 0"}},
		{`{"model_type":"smollm3","num_hidden_layers":1,"layer_types":["sliding_attention"]}`, []string{"sliding_window", "layer 0"}},
		{`{"model_type":"mistral","sliding_window":0}`, []string{"sliding_window is 0", "at least 1"}},
		{`{"model_type":"mistral","sliding_window":"all"}`, []string{"sliding_window", "integer"}},
		{`{"model_type":"llama","rope_scaling":{"type":"longrope","factor":2}}`, []string{"rope_scaling.rope_type", "longrope", "linear, dynamic, llama3 or yarn"}},
		{`{"model_type":"phi3","rope_scaling":{"type":"su","long_factor":[1]}}`, []string{"rope_scaling.short_factor", "missing"}},
		{`{"model_type":"phi3","head_dim":4,"rope_scaling":{"type":"longrope","short_factor":[1,2],"long_factor":[1]}}`, []string{"rope_scaling.long_factor", "1 numbers", "2"}},
		{`{"model_type":"phi3","rope_scaling":{"type":"longrope","short_factor":[1,0],"long_factor":[1]}}`, []string{"rope_scaling.short_factor[1] is 0"}},
		{`{"model_type":"phi3","head_dim":2,"rope_scaling":{"type":"longrope","short_factor":[1],"long_factor":[1]},"original_max_position_embeddings":1}`, []string{"original_max_position_embeddings is 1"}},
		{`{"model_type":"phi3","rope_scaling":{"type":"linear","factor":2}}`, []string{"rope_scaling.rope_type", "linear", "phi3", "longrope"}},
		{`{"model_type":"phi3","rope_scaling":{"type":"yarn","factor":2}}`, []string{"rope_scaling.short_factor", "missing"}},
		{`{"model_type":"llama","rope_scaling":{"type":"yarn"}}`, []string{"rope_scaling.factor", "missing"}},
		{`{"model_type":"llama","rope_scaling":{"type":"yarn","factor":0}}`, []string{"rope_scaling.factor", "positive"}},
		{`{"model_type":"llama","rope_scaling":{"type":"yarn","factor":2,"attention_factor":-1}}`, []string{"rope_scaling.attention_factor"}},
		{`{"model_type":"llama","rope_scaling":{"type":"yarn","factor":2,"beta_fast":"x"}}`, []string{"rope_scaling.beta_fast"}},
		{`{"model_type":"llama","rope_parameters":{"full_attention":{"rope_theta":1}}}`, []string{"rope_parameters.full_attention", "llama"}},
		{`{"model_type":"gemma3_text","rope_parameters":{"rope_theta":1}}`, []string{"rope_parameters.rope_theta"}},
		{`{"model_type":"gemma3_text","rope_parameters":{"sliding_attention":{"rope_type":"linear","factor":2}}}`, []string{"rope_parameters.sliding_attention.rope_type"}},
		{`{"model_type":"gemma3_text","final_logit_softcapping":30}`, []string{"final_logit_softcapping", "30"}},
		{`{"model_type":"gemma3_text","attn_logit_softcapping":50.0}`, []string{"attn_logit_softcapping"}},
		{`{"model_type":"gemma3_text","use_bidirectional_attention":true}`, []string{"use_bidirectional_attention"}},
		{`{"model_type":"gemma3_text","hidden_activation":"gelu"}`, []string{"hidden_activation", "gelu", "gelu_pytorch_tanh"}},
		{`{"model_type":"gemma3_text","sliding_window":null}`, []string{"sliding_window is 0 in layer 0"}},
		{`{"model_type":"gemma3_text","sliding_window_pattern":0}`, []string{"sliding_window_pattern"}},
		{`{"model_type":"gemma3_text","query_pre_attn_scalar":0}`, []string{"query_pre_attn_scalar"}},
		{`{"model_type":"gemma3_text","rope_local_base_freq":0}`, []string{"rope_local_base_freq"}},
		{`{"model_type":"gemma3"}`, []string{"gemma3", "gemma3_text"}},
		{`{"model_type":"ministral3","rope_parameters":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":64}}`, []string{"llama_4_scaling_beta", "missing"}},
		{`{"model_type":"ministral3","rope_parameters":{"llama_4_scaling_beta":0.1}}`, []string{"original_max_position_embeddings", "missing"}},
		{`{"model_type":"ministral3","rope_parameters":{"llama_4_scaling_beta":-1,"original_max_position_embeddings":64}}`, []string{"llama_4_scaling_beta is -1"}},
		{`{"model_type":"ministral3","rope_parameters":{"llama_4_scaling_beta":0.1,"original_max_position_embeddings":0}}`, []string{"original_max_position_embeddings is 0"}},
		{`{"model_type":"llama","residual_multiplier":0.5}`, []string{"residual_multiplier", "0.5"}},
		{`{"model_type":"granite","logits_scaling":0}`, []string{"logits_scaling is 0"}},
		{`{"model_type":"hunyuan_v1_dense","use_cla":true}`, []string{"use_cla true"}},
		{`{"model_type":"hunyuan_v1_dense","use_qk_norm":false}`, []string{"use_qk_norm false"}},
		{`{"model_type":"hunyuan_v1_dense","norm_type":"layer"}`, []string{"norm_type", "layer"}},
		{`{"model_type":"hunyuan_v1_dense","mlp_bias":true}`, []string{"mlp_bias"}},
		{`{"model_type":"hunyuan_v1_dense","rope_scaling":{"type":"dynamic","alpha":-1,"factor":1}}`, []string{"alpha is -1"}},
		{`{"model_type":"exaone4","sliding_window_pattern":"LLLG"}`, []string{"sliding_window_pattern", "LLLG", "layer_types"}},
		{`{"model_type":"exaone4","sliding_window_pattern":0}`, []string{"sliding_window_pattern is 0"}},
		{`{"model_type":"exaone4","num_hidden_layers":1,"sliding_window":null,"layer_types":["sliding_attention"]}`, []string{"sliding_window", "layer 0"}},
		{`{"model_type":"olmo2","clip_qkv":8}`, []string{"clip_qkv"}},
		{`{"model_type":"phi3","partial_rotary_factor":0}`, []string{"partial_rotary_factor", "head_dim 96"}},
		{`{"model_type":"phi3","partial_rotary_factor":0.52}`, []string{"partial_rotary_factor", "even"}},
		{`{"model_type":"phi3","attention_bias":true}`, []string{"attention_bias", "phi3"}},
		{`{"model_type":"mistral","mlp_bias":true}`, []string{"mlp_bias", "mistral"}},
		{`{"model_type":"smollm3","no_rope_layers":[1,0]}`, []string{"no_rope_layers", "36"}},
		{`{"model_type":"smollm3","num_hidden_layers":2,"no_rope_layers":[1,2]}`, []string{"no_rope_layers[1]"}},
		{`{"model_type":"smollm3","no_rope_layer_interval":0}`, []string{"no_rope_layer_interval"}},
		{`{"model_type":"llama","rope_scaling":{"rope_type":"llama3","factor":2}}`, []string{"rope_scaling.low_freq_factor", "missing"}},
		{`{"model_type":"llama","partial_rotary_factor":0.5}`, []string{"partial_rotary_factor"}},
		{`{"model_type":"llama","num_attention_heads":5}`, []string{"hidden_size", "num_attention_heads"}},
		{`{"model_type":"llama","num_key_value_heads":3}`, []string{"num_key_value_heads", "num_attention_heads"}},
		{`{"model_type":"llama","num_attention_heads":0}`, []string{"num_attention_heads"}},
		{`{"model_type":"llama","hidden_size":1e3}`, []string{"hidden_size"}},
		{`{"model_type":"llama","hidden_size":99999999999}`, []string{"hidden_size"}},
		{`{"model_type":"llama","num_hidden_layers":2147483647}`, []string{"num_hidden_layers"}},
		{`{"model_type":"llama","hidden_size":null}`, []string{"hidden_size", "null"}},
		{`{"model_type":"llama","head_dim":7}`, []string{"head_dim"}},
		{`{"model_type":"llama","head_dim":4096,"max_position_embeddings":33554432}`, []string{"max_position_embeddings", "head_dim", "at most"}},
		{`{"model_type":"llama","rms_norm_eps":0}`, []string{"rms_norm_eps"}},
		{`{"model_type":"llama","rope_theta":-1}`, []string{"rope_theta"}},
		{`{"model_type":"llama","tie_word_embeddings":"yes"}`, []string{"tie_word_embeddings"}},
		{`{"model_type":"llama","pad_token_id":32000}`, []string{"pad_token_id", "32000"}},
		{`{"model_type":"llama","eos_token_id":[1.5]}`, []string{"eos_token_id"}},
	})
}

// TestJSON writes and rereads the configurations of the goldens and of hand-written shapes.
func TestJSON(t *testing.T) {
	var configs []Config
	for _, name := range Families() {
		configs = append(configs, tinyConfig(name))
	}
	for _, path := range goldenConfigs(t) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := ParseJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, cfg)
	}
	for _, cfg := range configs {
		cfg.Tokens.EOS = []int32{2, 3} // the written file must have this change, although Raw has the old value
		data, err := cfg.JSON("bfloat16")
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), `"torch_dtype": "bfloat16"`) {
			t.Errorf("no torch_dtype in %s", data)
		}
		if !regexp.MustCompile(`"rope_theta": \d+\.0,`).Match(data) {
			t.Errorf("rope_theta is not written as a float: %s", data)
		}
		if cfg.Raw != nil && !strings.Contains(string(data), "initializer_range") {
			t.Errorf("initializer_range of the source was lost")
		}
		cfg.Raw, again.Raw, cfg.Quantisation = nil, nil, nil
		if !reflect.DeepEqual(cfg, again) {
			t.Errorf("\nwrote %+v\nread  %+v", cfg, again)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"model_type":"llama"}`, `{"model_type":"qwen3","rope_scaling":{"rope_type":"llama3"},"eos_token_id":[1]}`, `{"a":[[[{}]]]}`} {
		f.Add([]byte(seed))
	}
	if data, err := os.ReadFile("../../../testdata/models/qwen2-untied/config.json"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := ParseJSON(data)
		if err != nil {
			return
		}
		written, err := cfg.JSON("float32")
		if err != nil {
			t.Fatalf("%s: cannot be written: %v", data, err)
		}
		again, err := ParseJSON(written)
		cfg.Raw, again.Raw, cfg.Quantisation = nil, nil, nil
		if err != nil || !reflect.DeepEqual(cfg, again) {
			t.Fatalf("%s: %+v became %+v (%v)", data, cfg, again, err)
		}
	})
}
