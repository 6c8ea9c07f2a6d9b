"""wrapped.py OUT: writes small random models that contain a language model, in the form that transformers saves.

Each is a folder OUT/NAME with the layout of published checkpoints of its class. Models in FLOAT32 get adapters and are in float32, the
others in bf16. mistral3 and qwen3_5 have several shards with an index, their own head, and tensors of an `mtp` module, which
transformers does not read.
"""
import json
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

FLOAT32 = ("gemma3", "gemma4", "mistral3", "qwen3_5")

TEXT = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
            bos_token_id=1, eos_token_id=2, pad_token_id=0)
SIGLIP = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)


def models():
    gemma = dict(TEXT, model_type="gemma3_text", num_hidden_layers=7, head_dim=32, query_pre_attn_scalar=32, sliding_window=8)
    yield "gemma3", Gemma3ForConditionalGeneration(Gemma3Config(text_config=gemma, vision_config=dict(SIGLIP, model_type="siglip_vision_model"), mm_tokens_per_image=4)), {}
    shared = dict(TEXT, model_type="gemma4_text", num_hidden_layers=6, head_dim=32, global_head_dim=64, sliding_window=8, final_logit_softcapping=30.0,
                  layer_types=["sliding_attention", "full_attention"] * 3, num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=16,
                  vocab_size_per_layer_input=320)
    tower = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=16, patch_size=4, position_embedding_size=64)
    yield "gemma4", Gemma4ForConditionalGeneration(Gemma4Config(text_config=shared, vision_config=tower, audio_config=None)), {}
    mistral = dict(TEXT, model_type="mistral", head_dim=32)
    pixtral = dict(model_type="pixtral", hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, image_size=28, patch_size=14)
    yield "mistral3", Mistral3ForConditionalGeneration(Mistral3Config(text_config=mistral, vision_config=pixtral, tie_word_embeddings=False)), {"max_shard_size": "200KB"}
    qwen = dict(TEXT, rope_scaling={"type": "mrope", "mrope_section": [4, 6, 6]}, tie_word_embeddings=True)
    vision = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64, fullatt_block_indexes=[0])
    yield "qwen2_5_vl", Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=qwen, vision_config=vision)), {}
    recurrent = dict(TEXT, model_type="qwen3_5_text", num_hidden_layers=4, head_dim=32, full_attention_interval=4, linear_num_key_heads=2, linear_num_value_heads=4,
                     linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4, mtp_num_hidden_layers=1,
                     rope_parameters=dict(rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[2, 1, 1]))
    vision = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64, num_position_embeddings=16)
    yield "qwen3_5", Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=recurrent, vision_config=vision)), {"max_shard_size": "200KB"}
    yield "smolvlm", SmolVLMForConditionalGeneration(SmolVLMConfig(text_config=dict(TEXT, model_type="llama"), vision_config=dict(SIGLIP, model_type="smolvlm_vision"), scale_factor=2)), {}
    lfm2 = dict(TEXT, model_type="lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], block_multiple_of=16)
    yield "lfm2_vl", Lfm2VlForConditionalGeneration(Lfm2VlConfig(text_config=lfm2, vision_config=dict(SIGLIP, model_type="siglip2_vision_model", num_patches=4), projector_hidden_size=48)), {}


def add_mtp(folder):
    """Adds a shard with the tensors of a module that predicts further tokens."""
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index) as f:
        content = json.load(f)
    tensors = {"mtp.layers.0.input_layernorm.weight": torch.ones(64), "mtp.steps": torch.arange(3)}
    save_file(tensors, os.path.join(folder, "model-mtp.safetensors"), metadata={"format": "pt"})
    content["weight_map"].update({name: "model-mtp.safetensors" for name in tensors})
    with open(index, "w") as f:
        json.dump(content, f)


def main():
    torch.manual_seed(3)
    for name, model, options in models():
        folder = os.path.join(sys.argv[1], name)
        model.to(torch.float32 if name in FLOAT32 else torch.bfloat16).save_pretrained(folder, **options)
        if name in ("mistral3", "qwen3_5"):
            add_mtp(folder)
        files = [f for f in os.listdir(folder) if f.endswith(".safetensors")]
        keys = sorted(key for file in files for key in safe_open(os.path.join(folder, file), "pt").keys())
        print(name, len(files), "files:", ", ".join(keys[:2] + keys[-3:]), flush=True)


main()
