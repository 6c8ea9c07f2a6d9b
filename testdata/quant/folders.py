"""Writes folders/: small quantised Hugging Face folders. NAME/expected.safetensors has their matrices in float32, widened by torch 2.15.0,
transformers 5.24.0 and compressed-tensors 0.20.0. codes.json has each code of the number formats.

mxfp4.safetensors has stacked matrices in blocks, and their values.

pip install torch==2.15.0 transformers==5.24.0 compressed-tensors==0.20.0 safetensors numpy && python testdata/quant/folders.py
"""
import json, math, pathlib
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

HERE = pathlib.Path(__file__).parent
HIDDEN, FFN, HEADS, HEAD, VOCAB = 40, 56, 2, 24, 16
MATRICES = {"self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (HEAD, HIDDEN), "self_attn.v_proj": (HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN)}
VECTORS = {"self_attn.q_norm": HEAD, "self_attn.k_norm": HEAD, "input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
E4M3 = torch.float8_e4m3fn


def config(quantization):
    return dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=1, num_attention_heads=HEADS,
                num_key_value_heads=1, head_dim=HEAD, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True, torch_dtype="bfloat16", quantization_config=quantization)


def write(name, quantization, quantise):
    """Writes a folder. quantise(w) returns the stored tensors by the end of their names, and the values."""
    torch.manual_seed(len(name))
    stored, expected = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN).bfloat16(), "model.norm.weight": torch.rand(HIDDEN).bfloat16()}, {}
    for module, size in VECTORS.items():
        stored[f"model.layers.0.{module}.weight"] = torch.rand(size).bfloat16()
    for module, shape in MATRICES.items():
        tensors, expected[f"model.layers.0.{module}.weight"] = quantise(torch.randn(shape))
        stored.update({f"model.layers.0.{module}.{end}": t for end, t in tensors.items()})
    folder = HERE / "folders" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(quantization), indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in stored.items()}, folder / "model.safetensors")
    save_file({k: v.float().contiguous() for k, v in expected.items()}, folder / "expected.safetensors")


def fp8_blocks(rows, cols, scale_type):
    def quantise(w):
        grid = math.ceil(w.shape[0] / rows), math.ceil(w.shape[1] / cols)
        scale = torch.rand(grid).add(0.5).div(64)
        if scale_type == torch.float8_e8m0fnu:
            scale = torch.exp2(torch.randint(-8, -4, grid).float())
        scale = scale.to(scale_type)
        every = scale.float().repeat_interleave(rows, 0).repeat_interleave(cols, 1)[:w.shape[0], :w.shape[1]]
        q = (w / every).clamp(-448, 448).to(E4M3)
        values = q.float() * every
        if w.shape[0] % rows == 0 and w.shape[1] % cols == 0:
            assert torch.equal(values, Fp8Dequantize(None)._dequantize_one(q, scale, torch.float32))
        return {"weight": q, "weight_scale_inv": scale}, values
    return quantise


def fp8_tensor(w):
    scale = (w.abs().max() / 448).bfloat16()
    q = (w / scale.float()).clamp(-448, 448).to(E4M3)
    values = Fp8Dequantize(None)._dequantize_one(q, scale, torch.float32)
    return {"weight": q, "weight_scale_inv": scale, "activation_scale": torch.tensor(0.03125)}, values


def compressed(strategy, **more):
    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True, **more)
    def quantise(w):
        size = {"tensor": (1,), "channel": (w.shape[0], 1)}.get(strategy) or [s // b for s, b in zip(w.shape, more["block_structure"])]
        scale = torch.rand(size).add(0.5).div(64)
        weight = w.div(0.02).clamp(-448, 448).to(E4M3)
        out = BaseCompressor.get_value_from_registry("float-quantized").decompress({"weight": weight, "weight_scale": scale}, QuantizationScheme(targets=["Linear"], weights=args))
        return {"weight": weight, "weight_scale": scale}, out["weight"]
    group = dict(input_activations=None, output_activations=None, targets=["Linear"], weights=json.loads(args.model_dump_json()))
    return dict(config_groups=dict(group_0=group), format="float-quantized", ignore=["lm_head"], kv_cache_scheme=None, quant_method="compressed-tensors", quantization_status="compressed"), quantise


fine = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8")
write("fp8-blocks", dict(fine, weight_block_size=[16, 16]), fp8_blocks(16, 16, torch.float32))  # 40 and 56 are not multiples of 16
write("fp8-powers", dict(fine, weight_block_size=[8, 20]), fp8_blocks(8, 20, torch.float8_e8m0fnu))
write("fp8-tensors", dict(activation_scheme="static", dequantize=False, modules_to_not_convert=["lm_head"], quant_method="fp8", weight_block_size=None), fp8_tensor)
for strategy, more in {"tensor": {}, "channel": {}, "block": dict(block_structure=[8, 8])}.items():
    write(f"compressed-{strategy}", *compressed(strategy, **more))

torch.manual_seed(4)
blocks, factors = torch.randint(0, 256, (3, 5, 2, 16), dtype=torch.uint8), torch.randint(110, 140, (3, 5, 2), dtype=torch.uint8)
widened = convert_moe_packed_tensors(blocks, factors, dtype=torch.float32).transpose(1, 2)  # to experts, rows, columns
save_file({"experts.down_proj_blocks": blocks, "experts.down_proj_scales": factors, "expected": widened.contiguous()}, HERE / "mxfp4.safetensors")

# gpt-oss: fused experts in blocks, everything else in BF16. The expected matrices are gates and ups, split as in transformers'
# GptOssExperts.
torch.manual_seed(5)
EXPERTS, WIDTH = 2, 32
stored = {"model.embed_tokens.weight": torch.randn(VOCAB, WIDTH), "model.norm.weight": torch.rand(WIDTH), "lm_head.weight": torch.randn(VOCAB, WIDTH)}
layer = {"input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,), "self_attn.sinks": (HEADS,), "mlp.router.weight": (EXPERTS, WIDTH),
         "mlp.router.bias": (EXPERTS,), "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * WIDTH), "mlp.experts.down_proj_bias": (EXPERTS, WIDTH)}
for name, rows, cols in (("q", HEADS * HEAD, WIDTH), ("k", HEAD, WIDTH), ("v", HEAD, WIDTH), ("o", WIDTH, HEADS * HEAD)):
    layer.update({f"self_attn.{name}_proj.weight": (rows, cols), f"self_attn.{name}_proj.bias": (rows,)})
stored.update({f"model.layers.0.{name}": torch.randn(shape) for name, shape in layer.items()})
stored, expected = {name: t.bfloat16() for name, t in stored.items()}, {}
for name, rows in (("gate_up_proj", 2 * WIDTH), ("down_proj", WIDTH)):
    blocks, factors = torch.randint(0, 256, (EXPERTS, rows, WIDTH // 32, 16), dtype=torch.uint8), torch.randint(118, 127, (EXPERTS, rows, WIDTH // 32), dtype=torch.uint8)
    stored.update({f"model.layers.0.mlp.experts.{name}_blocks": blocks, f"model.layers.0.mlp.experts.{name}_scales": factors})
    widened = convert_moe_packed_tensors(blocks, factors, dtype=torch.float32)  # experts, inputs, outputs
    for e in range(EXPERTS):
        parts = {"gate_proj": widened[e][..., ::2], "up_proj": widened[e][..., 1::2]} if name == "gate_up_proj" else {name: widened[e]}
        expected.update({f"model.layers.0.mlp.experts.{e}.{part}.weight": w.T.contiguous() for part, w in parts.items()})
folder = HERE / "folders" / "gpt_oss-mxfp4"
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.json").write_text(json.dumps(dict(
    architectures=["GptOssForCausalLM"], model_type="gpt_oss", vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
    num_key_value_heads=1, head_dim=HEAD, num_local_experts=EXPERTS, num_experts_per_tok=1, sliding_window=8, layer_types=["sliding_attention"], max_position_embeddings=64,
    rms_norm_eps=1e-5, swiglu_limit=7.0, rope_theta=150000, rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096, rope_type="yarn", truncate=False),
    torch_dtype="bfloat16", quantization_config=dict(modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], quant_method="mxfp4")), indent=1) + "\n")
save_file(stored, folder / "model.safetensors")
save_file(expected, folder / "expected.safetensors")

codes = torch.arange(256, dtype=torch.uint8)
text = lambda v: [None if math.isnan(x) else x for x in v.float().tolist()]
(HERE / "codes.json").write_text(json.dumps({"F8_E4M3": text(codes.view(E4M3)), "F8_E8M0": text(codes.view(torch.float8_e8m0fnu)), "MXFP4": FP4_VALUES}) + "\n")
