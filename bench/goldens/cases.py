"""Configurations of the golden cases: published models with fewer and smaller layers."""


def text(model_type, architecture, **keys):
    config = dict(architectures=[architecture], model_type=model_type, vocab_size=64, hidden_size=24, intermediate_size=40, num_hidden_layers=3,
                  num_attention_heads=3, num_key_value_heads=1, head_dim=8, hidden_act="silu", max_position_embeddings=256, rms_norm_eps=1e-5,
                  initializer_range=0.02, attention_dropout=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=None, use_cache=True,
                  tie_word_embeddings=False, torch_dtype="bfloat16")
    config.update(keys)
    return {k: v for k, v in config.items() if v is not ...}


def case(note, *model, scale=None, noise=1, **keys):
    return dict(note=note, config=text(*model, **keys), scale=scale or {}, noise=noise)


SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"

# Gated delta rules read a state with a query and normalise the result. With a small eps and large weights, float32 differs too much from
# float64.
CALM_DELTA = dict(q_norm=0.4, k_norm=0.4, out_proj=0.3, down_proj=0.3, in_proj_qkv=1.5)

def gemma4(full_theta=1000000.0, factor=0.25):
    return dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                full_attention=dict(rope_type="proportional", partial_rotary_factor=factor, rope_theta=full_theta))


CASES = {
    "gemma4-shared-keys": case(
        "E2B's parts: inputs of each layer, the last three layers attend to keys and values of earlier ones and have MLPs of twice the width, larger "
        "heads without a window, a quarter of whose planes turn, norms of values, capped logits, factors of layers; tied",
        "gemma4_text", "Gemma4ForCausalLM", num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1, head_dim=8, global_head_dim=16,
        hidden_act=..., hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-4, attention_bias=False, sliding_window=6,
        layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING, FULL], rope_parameters=gemma4(), final_logit_softcapping=6.0, hidden_size_per_layer_input=12,
        vocab_size_per_layer_input=64, num_kv_shared_layers=3, use_double_wide_mlp=True, attention_k_eq_v=False, num_global_key_value_heads=None,
        enable_moe_block=False, num_experts=None, top_k_experts=None, moe_intermediate_size=None, use_bidirectional_attention=None,
        pad_token_id=0, tie_word_embeddings=True, scale=dict(q_norm=0.4, k_norm=0.4)),
    "gemma4-keys-are-values": case(
        "31B's parts: without a window values are the product of the keys, of fewer and larger heads; no inputs of layers; capped logits; tied",
        "gemma4_text", "Gemma4ForCausalLM", num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, head_dim=8, global_head_dim=20,
        hidden_act=..., hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, attention_bias=False, sliding_window=6,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL], rope_parameters=gemma4(), final_logit_softcapping=8.0, hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=64, num_kv_shared_layers=0, use_double_wide_mlp=False, attention_k_eq_v=True, num_global_key_value_heads=2,
        enable_moe_block=False, num_experts=None, top_k_experts=None, moe_intermediate_size=None, use_bidirectional_attention="vision",
        pad_token_id=0, tie_word_embeddings=True, scale=dict(q_norm=0.4, k_norm=0.4)),
    "gemma4-experts": case(
        "26B-A4B's parts: experts beside a dense MLP in each layer, 6 and top 2, with scales of the router's inputs and of each expert; without a window "
        "values are the product of the keys; no inputs of layers; tied",
        "gemma4_text", "Gemma4ForCausalLM", num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, global_head_dim=16,
        hidden_act=..., hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, attention_bias=False, sliding_window=6,
        layer_types=[SLIDING, SLIDING, FULL], rope_parameters=gemma4(), final_logit_softcapping=8.0, hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=64, num_kv_shared_layers=0, use_double_wide_mlp=False, attention_k_eq_v=True, num_global_key_value_heads=1,
        enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=12, use_bidirectional_attention="vision",
        pad_token_id=0, tie_word_embeddings=True, scale=dict(q_norm=0.4, k_norm=0.4, proj=4.0, post_attention_layernorm=2.5, post_feedforward_layernorm=4.0)),
    "gemma4-last-shared": case(
        "E4B's parts as llama.cpp has them: the last two layers share the keys and values of the two before them; tied",
        "gemma4_text", "Gemma4ForCausalLM", num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1, head_dim=8, global_head_dim=16,
        hidden_act=..., hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-4, attention_bias=False, sliding_window=6,
        layer_types=[SLIDING, FULL, SLIDING, FULL], rope_parameters=gemma4(), final_logit_softcapping=6.0, hidden_size_per_layer_input=12,
        vocab_size_per_layer_input=64, num_kv_shared_layers=2, use_double_wide_mlp=True, attention_k_eq_v=False, num_global_key_value_heads=None,
        enable_moe_block=False, num_experts=None, top_k_experts=None, moe_intermediate_size=None, use_bidirectional_attention=None,
        pad_token_id=0, tie_word_embeddings=True, scale=dict(q_norm=0.4, k_norm=0.4)),
    "gemma-scaled": case(
        "Gemma 1: scaled embedding, norms of 1 + w, GELU under its older name, heads whose width together is not hidden_size; tied", "gemma",
        "GemmaForCausalLM", num_hidden_layers=2, head_dim=10, hidden_act="gelu", rms_norm_eps=1e-6, rope_theta=10000.0, attention_bias=False,
        pad_token_id=0, tie_word_embeddings=True),
    "ministral3-scaled-queries": case(
        "queries scaled by position, in steps of original_max_position_embeddings 8; YaRN with mscale and mscale_all_dim equal",
        "ministral3", "Ministral3ForCausalLM", sliding_window=None,
        rope_parameters=dict(beta_fast=32.0, beta_slow=1.0, factor=16.0, llama_4_scaling_beta=0.1, mscale=1.0, mscale_all_dim=1.0,
                             original_max_position_embeddings=8, rope_theta=1000000.0, rope_type="yarn", type="yarn")),
    "granite-multipliers": case(
        "four multipliers, none of which is 1", "granite", "GraniteForCausalLM", head_dim=..., attention_bias=False, mlp_bias=False,
        attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=0.8, rope_theta=10000.0, rope_scaling=None),
    "olmo3-windows": case(
        "OLMo 2's norms, windows on three of four layers, YaRN on the fourth alone", "olmo3", "Olmo3ForCausalLM", num_hidden_layers=4, head_dim=...,
        num_key_value_heads=3, attention_bias=False, sliding_window=6, layer_types=[SLIDING, SLIDING, SLIDING, FULL], rope_theta=500000,
        rope_scaling=dict(attention_factor=1.2079441541679836, beta_fast=32.0, beta_slow=1.0, factor=8.0, original_max_position_embeddings=32,
                          rope_type="yarn")),
    "hunyuan-norms-after-rope": case(
        "norms of heads after rotation, theta stretched by alpha; tied", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", attention_bias=False,
        mlp_bias=False, add_classification_head=False, cla_share_factor=2, use_qk_norm=True, use_cla=False, use_rotary_pos_emb=True, norm_type="rms",
        rope_theta=10000.0, rope_scaling=dict(alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0, mscale_all_dim=1.0, type="dynamic"),
        tie_word_embeddings=True),
    "exaone4-hybrid": case(
        "norms after attention and MLP alone; layers without a window have no positions", "exaone4", "Exaone4ForCausalLM", num_hidden_layers=4,
        sliding_window=6, sliding_window_pattern="LLLG", layer_types=[SLIDING, SLIDING, SLIDING, FULL], rope_theta=1000000.0,
        rope_scaling=dict(factor=16.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=32, rope_type="llama3")),
    "exaone4-full": case(
        "sliding_window null: every layer turns and sees all; tied", "exaone4", "Exaone4ForCausalLM", num_hidden_layers=2, sliding_window=None,
        sliding_window_pattern=None, layer_types=[FULL, FULL], rope_theta=1000000.0,
        rope_scaling=dict(factor=16.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=32, rope_type="llama3"),
        tie_word_embeddings=True),
    "ernie4_5-pairs": case(
        "RoPE on neighbouring pairs, 0.3B's biases off; tied", "ernie4_5", "Ernie4_5ForCausalLM", use_bias=False, rope_theta=500000.0,
        tie_word_embeddings=True, attention_dropout=...),
    "ernie4_5-biases": case(
        "use_bias: biases on every projection", "ernie4_5", "Ernie4_5ForCausalLM", num_hidden_layers=2, use_bias=True, rope_theta=500000.0,
        attention_dropout=...),
    "glm4-half-rotary": case(
        "norms before and after, fused gate and up, RoPE on neighbouring pairs of half a head", "glm4", "Glm4ForCausalLM",
        attention_bias=False, partial_rotary_factor=0.5, rope_theta=10000.0, rms_norm_eps=1.5625e-07, num_hidden_layers=2),
    "qwen2_moe-shared": case(
        "an expert for all tokens beside 6, top 2, weights not normalised; layer 0 is dense", "qwen2_moe", "Qwen2MoeForCausalLM", head_dim=...,
        num_key_value_heads=3, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=20, norm_topk_prob=False,
        decoder_sparse_step=1, mlp_only_layers=[0], qkv_bias=True, use_sliding_window=False, sliding_window=32, max_window_layers=2,
        rope_theta=1000000.0, output_router_logits=False, router_aux_loss_coef=0.001),
    "qwen2_moe-every-layer": case(
        "experts and one for all tokens in every layer, as llama.cpp has them", "qwen2_moe", "Qwen2MoeForCausalLM", head_dim=..., num_hidden_layers=2,
        num_key_value_heads=3, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=20, norm_topk_prob=False,
        decoder_sparse_step=1, mlp_only_layers=[], qkv_bias=True, use_sliding_window=False, sliding_window=32, max_window_layers=2,
        rope_theta=1000000.0, output_router_logits=False, router_aux_loss_coef=0.001),
    "mixtral-top2": case(
        "4 experts, top 2, normalised, in every layer", "mixtral", "MixtralForCausalLM", num_hidden_layers=2, intermediate_size=20, num_local_experts=4,
        num_experts_per_tok=2, rope_theta=1000000.0, sliding_window=None, output_router_logits=False, router_aux_loss_coef=0.02),
    "gpt_oss-sinks": case(
        "a sink for each head, windows on every other layer, 5 experts, top 3, whose gates are clamped, biases everywhere; YaRN without truncation",
        "gpt_oss", "GptOssForCausalLM", num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=16,
        attention_bias=True, sliding_window=6, layer_types=[SLIDING, FULL, SLIDING, FULL], num_local_experts=5, num_experts_per_tok=3,
        swiglu_limit=7.0, experts_per_token=3, initial_context_length=32, rope_theta=150000.0, output_router_logits=False, router_aux_loss_coef=0.9,
        rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=8.0, original_max_position_embeddings=32, rope_type="yarn", truncate=False),
        scale=dict(experts=2.2)),
    "gpt_oss-whole-bounds": case(
        "the bounds of YaRN's interpolation are whole, as in llama.cpp; 4 experts, top 2", "gpt_oss", "GptOssForCausalLM", num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=16, attention_bias=True, sliding_window=6, layer_types=[SLIDING, FULL],
        num_local_experts=4, num_experts_per_tok=2, swiglu_limit=7.0, experts_per_token=2, initial_context_length=32, rope_theta=150000.0,
        output_router_logits=False, router_aux_loss_coef=0.9,
        rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=8.0, original_max_position_embeddings=32, rope_type="yarn", truncate=True),
        scale=dict(experts=2.2)),
    "gpt_oss-plain": case(
        "no biases of attention, no windows, positions as they are, one expert of 4 a token", "gpt_oss", "GptOssForCausalLM", num_hidden_layers=2,
        hidden_size=20, head_dim=12, num_key_value_heads=3, intermediate_size=12, attention_bias=False, sliding_window=128, layer_types=[FULL, FULL],
        num_local_experts=4, num_experts_per_tok=1, rope_parameters=dict(rope_type="default", rope_theta=10000.0), output_router_logits=False),
    "phi3-longrope": case(
        "longrope within original_max_position_embeddings: short factors, and the amplitude of 1024/32; three quarters of a head turn; tied", "phi3",
        "Phi3ForCausalLM", head_dim=..., num_attention_heads=3, attention_bias=False, rope_theta=10000.0, original_max_position_embeddings=32,
        max_position_embeddings=1024, partial_rotary_factor=0.75, sliding_window=None, resid_pdrop=0.0, embd_pdrop=0.0, num_hidden_layers=2,
        rope_scaling=dict(long_factor=[1.0, 4.5, 14.0], short_factor=[1.0, 1.25, 2.2], type="longrope"), tie_word_embeddings=True),
    "lfm2-convolutions": case(
        "layers of convolutions and of attention as published: full_attn_idxs, block_ff_dim of which two thirds are rounded up, keys with names of "
        "their own; tied", "lfm2", "Lfm2ForCausalLM", num_hidden_layers=4, head_dim=..., hidden_act=..., rms_norm_eps=..., attention_dropout=...,
        intermediate_size=..., tie_word_embeddings=..., norm_eps=1e-5, block_norm_eps=1e-5, tie_embedding=True, pad_token_id=0,
        num_heads=3, block_dim=24, block_ff_dim=54, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, block_multiple_of=8,
        block_use_swiglu=True, conv_L_cache=3, conv_bias=False, conv_dim=24, conv_dim_out=24, full_attn_idxs=[2], rope_theta=1000000.0, theta=1000000.0,
        scale=dict(q_layernorm=0.4, k_layernorm=0.4)),
    "lfm2-biases": case(
        "biases of convolutions of width 4 and of their projections, layer_types, MLPs that are wider by a factor", "lfm2", "Lfm2ForCausalLM",
        hidden_size=20, num_attention_heads=5, num_key_value_heads=5, head_dim=..., hidden_act=..., rms_norm_eps=..., attention_dropout=...,
        intermediate_size=45, norm_eps=1e-6, pad_token_id=0, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.3, block_multiple_of=4,
        conv_L_cache=4, conv_bias=True, layer_types=["conv", FULL, "conv"], rope_parameters=dict(rope_theta=10000.0, rope_type="default"),
        tie_embedding=False, tie_word_embeddings=...),
    "lfm2_moe-biased": case(
        "a dense layer, then experts: a bias shifts their choice, their weights are sigmoids, divided by their sum and scaled; convolutions and attention; "
        "tied", "lfm2_moe", "Lfm2MoeForCausalLM", num_hidden_layers=4, head_dim=..., hidden_act=..., rms_norm_eps=..., attention_dropout=...,
        norm_eps=1e-5, pad_token_id=0, conv_L_cache=3, conv_bias=False, layer_types=["conv", "conv", FULL, "conv"], rope_theta=1000000.0,
        moe_intermediate_size=12, num_dense_layers=1, num_experts=6, num_experts_per_tok=2, use_expert_bias=True, norm_topk_prob=True,
        routed_scaling_factor=1.5, tie_word_embeddings=True, scale=dict(q_layernorm=0.4, k_layernorm=0.4)),
    "lfm2_moe-unscaled": case(
        "as lfm2_moe-biased, with two dense layers and weights that are not scaled, as in GGUF files; tied", "lfm2_moe", "Lfm2MoeForCausalLM",
        num_hidden_layers=4, head_dim=..., hidden_act=..., rms_norm_eps=..., attention_dropout=..., norm_eps=1e-5, pad_token_id=0, conv_L_cache=3,
        conv_bias=False, layer_types=["conv", FULL, "conv", FULL], rope_theta=1000000.0, moe_intermediate_size=16, num_dense_layers=2, num_experts=5,
        num_experts_per_tok=3, use_expert_bias=True, norm_topk_prob=True, routed_scaling_factor=1.0, tie_word_embeddings=True,
        scale=dict(q_layernorm=0.4, k_layernorm=0.4)),
    "lfm2_moe-plain": case(
        "experts in all layers, without a bias, weights that are not divided by their sum, biases of convolutions", "lfm2_moe", "Lfm2MoeForCausalLM",
        num_hidden_layers=2, head_dim=..., hidden_act=..., rms_norm_eps=..., attention_dropout=..., norm_eps=1e-5, pad_token_id=0, conv_L_cache=4,
        conv_bias=True, layer_types=[FULL, "conv"], rope_parameters=dict(rope_theta=10000.0, rope_type="default"), moe_intermediate_size=16,
        num_dense_layers=0, num_experts=5, num_experts_per_tok=3, use_expert_bias=False, norm_topk_prob=False, routed_scaling_factor=1.0,
        scale=dict(q_layernorm=0.4, k_layernorm=0.4)),
    "qwen3_5-published": case(
        "layers as published: three with a gated delta rule, then gated attention of which a quarter of each head is rotated; as many value heads as "
        "key heads; tied", "qwen3_5_text", "Qwen3_5ForCausalLM", num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        rms_norm_eps=1e-2, attention_bias=False, attn_output_gate=True, full_attention_interval=4, layer_types=[LINEAR, LINEAR, LINEAR, FULL],
        linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_num_key_heads=3, linear_num_value_heads=3, linear_value_head_dim=8,
        mamba_ssm_dtype="float32", mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, partial_rotary_factor=0.25,
        rope_parameters=dict(mrope_interleaved=True, mrope_section=[1, 1, 0], rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25),
        tie_word_embeddings=True, noise=2, scale=CALM_DELTA),
    "qwen3_5-value-heads": case(
        "three value heads for each key head, heads of odd sizes, a convolution of width 3, biases of attention, no layer_types, a half of each head "
        "is rotated", "qwen3_5_text", "Qwen3_5ForCausalLM", num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        rms_norm_eps=1e-2, attention_bias=True, full_attention_interval=2, linear_conv_kernel_dim=3, linear_key_head_dim=5, linear_num_key_heads=2,
        linear_num_value_heads=6, linear_value_head_dim=7, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
        noise=2, scale=CALM_DELTA),
    "qwen3_5-three-for-two": case(
        "as llama.cpp reads it: three value heads for each of two key heads, all of one size; an eps that the lengths of keys have, too; layer_types "
        "that no interval gives; untied", "qwen3_5_text", "Qwen3_5ForCausalLM", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, rms_norm_eps=1e-6, attention_bias=False, attn_output_gate=True, layer_types=[LINEAR, FULL], linear_conv_kernel_dim=4,
        linear_key_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=6, linear_value_head_dim=8, mtp_num_hidden_layers=1,
        rope_parameters=dict(mrope_interleaved=True, mrope_section=[2, 1, 1], rope_type="default", rope_theta=10000000, partial_rotary_factor=0.5),
        noise=2, scale=CALM_DELTA),
    "qwen3_5_moe-two-for-one": case(
        "as llama.cpp reads it: two value heads for each of two key heads, all of one size; experts and a shared one in all layers, stored together; "
        "an eps that the lengths of keys have, too; tied", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", num_hidden_layers=2, hidden_size=20,
        intermediate_size=..., num_attention_heads=2, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, attention_bias=False,
        layer_types=[LINEAR, FULL], linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_value_head_dim=8, moe_intermediate_size=12, shared_expert_intermediate_size=16, num_experts=5, num_experts_per_tok=2,
        rope_parameters=dict(mrope_interleaved=True, mrope_section=[1, 1, 0], rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25),
        tie_word_embeddings=True, noise=2, scale=dict(CALM_DELTA, experts=0.5, in_proj_qkv=1)),
    "qwen3_5_moe-shared": case(
        "experts and a shared one in all layers, stored together", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", num_hidden_layers=3, hidden_size=20,
        intermediate_size=..., num_attention_heads=2, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-2, attention_bias=False,
        layer_types=[LINEAR, FULL, LINEAR], linear_conv_kernel_dim=4, linear_key_head_dim=6, linear_num_key_heads=1, linear_num_value_heads=2,
        linear_value_head_dim=8, moe_intermediate_size=12, shared_expert_intermediate_size=16, num_experts=5, num_experts_per_tok=2,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25), noise=2, scale=dict(CALM_DELTA, experts=0.5, lm_head=0.6, in_proj_qkv=1)),
}
