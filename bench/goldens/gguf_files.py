"""Writes a golden case as a GGUF file with gguf-py, by its names of tensors, and asks llama.cpp for the case's greedy text.

pip install gguf==0.19.0 xllamacpp==2026.10.11549 numpy && python bench/goldens/gguf_files.py CASE_FOLDER FILE.gguf

Rows are in the order of llama.cpp's own converter, and so are metadata and names. mgrpo is not used. The text must equal transformers'
text, and each log-prob must be within 2e-3 of transformers'.
"""
import json
import os
import re
import sys

import gguf
import numpy

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from llamacpp import Server

TOLERANCE = 2e-3  # nats; llama.cpp rounds some activations to 16 bits


def tensors_of(file):
    """Returns the tensors of a safetensors file, in float32."""
    with open(file, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    for name, t in header.items():
        if name == "__metadata__" or t["dtype"] not in ("F32", "BF16"):
            continue
        raw = data[slice(*t["data_offsets"])]
        wide = numpy.frombuffer(raw, "<f4") if t["dtype"] == "F32" else (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        yield name, wide.reshape(t["shape"])


def turned(w, heads):
    """Returns rows of queries or keys with the two halves of each head interleaved, as llama.cpp's rotary embedding of pairs needs them."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def theta(c):
    """Returns rope_theta, stretched by HunYuan's alpha."""
    alpha, dim = (c.get("rope_scaling") or {}).get("alpha"), head_dim(c)
    rope = c.get("rope_parameters", {})
    base = c.get("rope_theta") or rope.get("full_attention", rope)["rope_theta"]
    return base * alpha ** (dim / (dim - 2)) if alpha else base


def granite(writer, c):
    writer.add_attention_scale(c["attention_multiplier"])
    writer.add_embedding_scale(c["embedding_multiplier"])
    writer.add_residual_scale(c["residual_multiplier"])
    writer.add_logit_scale(c["logits_scaling"])


def yarn(writer, rope):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def olmo3(writer, c):
    writer.add_sliding_window(c["sliding_window"])
    yarn(writer, c["rope_scaling"])


def ministral3(writer, c):
    rope = c["rope_parameters"]
    yarn(writer, rope)
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def glm4(writer, c):
    writer.add_rope_dimension_count(int(head_dim(c) * c["partial_rotary_factor"]))


def exaone4(writer, c):
    scaling, dim = c["rope_scaling"], head_dim(c)
    frequencies = c["rope_theta"] ** (-numpy.arange(0, dim, 2) / dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * numpy.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = numpy.clip((turns - low) / (high - low), 0, 1)
    writer.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype("f4"))


def mixture(writer, c, experts, chosen, width):
    writer.add_expert_count(c[experts])
    writer.add_expert_used_count(c[chosen])
    writer.add_expert_feed_forward_length(c[width])


def qwen3_moe(writer, c):
    mixture(writer, c, "num_experts", "num_experts_per_tok", "moe_intermediate_size")


def qwen2_moe(writer, c):
    qwen3_moe(writer, c)
    writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def gpt_oss(writer, c):
    mixture(writer, c, "num_local_experts", "num_experts_per_tok", "intermediate_size")
    writer.add_sliding_window(c["sliding_window"])
    yarn(writer, c["rope_scaling"])


def gemma4(writer, c):
    slides = [t == "sliding_attention" for t in c["layer_types"]]
    first = c["num_hidden_layers"] - c["num_kv_shared_layers"]
    rope, dim = c["rope_parameters"], c["global_head_dim"]
    writer.add_sliding_window(c["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(c["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(c["final_logit_softcapping"])
    writer.add_key_length_swa(c["head_dim"])
    writer.add_value_length_swa(c["head_dim"])
    writer.add_rope_dimension_count_swa(c["head_dim"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if c["use_double_wide_mlp"]:
        writer.add_feed_forward_length([c["intermediate_size"] * (1 + (i >= first)) for i in range(len(slides))])
    if c["num_global_key_value_heads"] is not None:
        writer.add_head_count_kv([c["num_key_value_heads"] if s else c["num_global_key_value_heads"] for s in slides])
    if c["enable_moe_block"]:
        mixture(writer, c, "num_experts", "top_k_experts", "moe_intermediate_size")
    turning = int(dim * rope["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", numpy.array([1.0] * turning + [1e30] * (dim // 2 - turning), "f4"))


def convolves(c):
    """Returns which layers are convolutions."""
    if "layer_types" in c:
        return [t == "conv" for t in c["layer_types"]]
    return [i not in c["full_attn_idxs"] for i in range(c["num_hidden_layers"])]


def lfm2(writer, c):
    width = int(2 * c["block_ff_dim"] / 3)
    multiple = c["block_multiple_of"]
    width = (int(width * c["block_ffn_dim_multiplier"]) + multiple - 1) // multiple * multiple
    writer.add_feed_forward_length(width)
    writer.add_head_count_kv([0 if x else c["num_key_value_heads"] for x in convolves(c)])
    writer.add_shortconv_l_cache(c["conv_L_cache"])


def lfm2_moe(writer, c):
    qwen3_moe(writer, c)
    writer.add_leading_dense_block_count(c["num_dense_layers"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_head_count_kv([0 if x else c["num_key_value_heads"] for x in convolves(c)])
    writer.add_shortconv_l_cache(c["conv_L_cache"])


def qwen35(writer, c):
    rope = c["rope_parameters"]
    arch = writer.arch
    writer.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(c["linear_key_head_dim"])
    writer.add_ssm_group_count(c["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(c["linear_num_value_heads"])
    writer.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    writer.add_array(f"{arch}.attention.recurrent_layers", [t == "linear_attention" for t in c["layer_types"]])
    writer.add_full_attention_interval(c.get("full_attention_interval", 4))
    writer.add_rope_dimension_count(int(head_dim(c) * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections((rope.get("mrope_section", [11, 11, 10]) + [0])[:4])


def qwen35_moe(writer, c):
    qwen2_moe(writer, c)
    qwen35(writer, c)


def tiled(w, c, size, axis=0):
    """Reorders value heads along an axis: they are grouped by key head, and the result has the first of each key head first."""
    keys = c["linear_num_key_heads"]
    split = w.reshape(*w.shape[:axis], keys, c["linear_num_value_heads"] // keys, size, *w.shape[axis + 1:])
    return split.swapaxes(axis, axis + 1).reshape(w.shape)


def delta_rule(name, w, c):
    """Returns a tensor of a gated delta rule in the form that llama.cpp's converter writes."""
    part, size = name.split("linear_attn.")[1], c["linear_value_head_dim"]
    if part.startswith(("in_proj_qkv", "conv1d")):
        w = w.squeeze()
        keys = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
        w = numpy.concatenate([w[:keys], tiled(w[keys:], c, size)])
    elif part.startswith("in_proj_z"):
        w = tiled(w, c, size)
    elif part.startswith("out_proj"):
        w = tiled(w, c, size, 1)
    elif not part.startswith("norm"):
        w = tiled(w, c, 1)
    return name.replace(".dt_bias", ".dt_proj.bias"), -numpy.exp(w) if part == "A_log" else w


def nothing(writer, c):
    pass


def renamed(tensors, c):
    """Yields tensors with the names and in the form that llama.cpp's converter writes: experts stacked, gates separate, scales named."""
    stacks = {}
    for name, w in tensors:
        expert = re.search(r"\.experts\.(\d+)\.", name)
        if expert:
            stacks.setdefault(name.replace(expert[0], ".experts."), []).append((int(expert[1]), w))
        elif c["model_type"] == "gpt_oss" and ".experts.gate_up_proj" in name:
            last = ".bias" if name.endswith("_bias") else ".weight"
            for i, part in enumerate(("gate_proj", "up_proj")):
                one = w[..., i::2]
                yield name.split("gate_up_proj")[0] + part + last, one if last == ".bias" else one.swapaxes(1, 2)
        elif c["model_type"] == "gpt_oss" and ".experts.down_proj" in name:
            yield (name[:-5] + ".bias", w) if name.endswith("_bias") else (name + ".weight", w.swapaxes(1, 2))
        elif c["model_type"] == "gemma" and name.endswith("norm.weight"):
            yield name, w + 1
        elif ".linear_attn." in name:
            yield delta_rule(name, w, c)
        elif c["model_type"].startswith("qwen3_5") and name.endswith("norm.weight"):
            yield name, w + 1
        elif c["model_type"] == "qwen3_5_moe_text" and ".experts.gate_up_proj" in name:
            for part, one in zip(("gate_proj", "up_proj"), numpy.split(w, 2, axis=1)):
                yield name.split("gate_up_proj")[0] + part + ".weight", one
        elif name.endswith(".expert_bias"):
            yield name + ".bias", w
        elif name.endswith("conv.conv.weight"):
            yield name, w[:, 0]
        elif name.endswith((".sinks", ".layer_scalar", ".experts.gate_up_proj", ".experts.down_proj")):
            yield name + ".weight", w
        else:
            yield name, w
    for name, parts in stacks.items():
        yield name.removeprefix("model.") if ".feed_forward." in name else name, numpy.stack([w for _, w in sorted(parts, key=lambda p: p[0])])


def gguf_name(names, name):
    layer = re.search(r"\.layers\.(\d+)\.", name)
    if name.endswith(".router.scale"):
        return f"blk.{layer[1]}.ffn_gate_inp.scale"
    if name.endswith(".router.per_expert_scale"):
        return f"blk.{layer[1]}.ffn_down_exps.scale"
    return names.get_name(name, (".weight", ".bias"))


# The architecture, whether rows of queries and keys are reordered, and keys that only this architecture has.
FAMILIES = {
    "olmo3": (gguf.MODEL_ARCH.OLMO2, False, olmo3),
    "ministral3": (gguf.MODEL_ARCH.MISTRAL3, True, ministral3),
    "glm4": (gguf.MODEL_ARCH.GLM4, False, glm4),
    "hunyuan_v1_dense": (gguf.MODEL_ARCH.HUNYUAN_DENSE, False, nothing),
    "granite": (gguf.MODEL_ARCH.GRANITE, True, granite),
    "olmo2": (gguf.MODEL_ARCH.OLMO2, False, nothing),
    "ernie4_5": (gguf.MODEL_ARCH.ERNIE4_5, False, nothing),
    "exaone4": (gguf.MODEL_ARCH.EXAONE4, False, exaone4),
    "llama": (gguf.MODEL_ARCH.LLAMA, True, nothing),
    "qwen2": (gguf.MODEL_ARCH.QWEN2, False, nothing),
    "qwen3": (gguf.MODEL_ARCH.QWEN3, False, nothing),
    "qwen3_moe": (gguf.MODEL_ARCH.QWEN3MOE, False, qwen3_moe),
    "qwen2_moe": (gguf.MODEL_ARCH.QWEN2MOE, False, qwen2_moe),
    "gpt_oss": (gguf.MODEL_ARCH.GPT_OSS, False, gpt_oss),
    "gemma": (gguf.MODEL_ARCH.GEMMA, False, nothing),
    "gemma4_text": (gguf.MODEL_ARCH.GEMMA4, False, gemma4),
    "lfm2": (gguf.MODEL_ARCH.LFM2, False, lfm2),
    "lfm2_moe": (gguf.MODEL_ARCH.LFM2MOE, False, lfm2_moe),
    "qwen3_5_text": (gguf.MODEL_ARCH.QWEN35, False, qwen35),
    "qwen3_5_moe_text": (gguf.MODEL_ARCH.QWEN35MOE, False, qwen35_moe),
}


def write(folder, path, c, eos):
    arch, pairs, own = FAMILIES[c["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    if not c.get("use_double_wide_mlp") and "intermediate_size" in c:
        writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    if c.get("num_global_key_value_heads") is None and "conv_L_cache" not in c:
        writer.add_head_count_kv(kv)
    writer.add_layer_norm_rms_eps(c.get("rms_norm_eps", c.get("norm_eps")))
    writer.add_key_length(c.get("global_head_dim", head_dim(c)))
    writer.add_value_length(c.get("global_head_dim", head_dim(c)))
    writer.add_rope_freq_base(theta(c))
    if "partial_rotary_factor" not in c and "linear_key_head_dim" not in c:
        writer.add_rope_dimension_count(c.get("global_head_dim", head_dim(c)))
    writer.add_vocab_size(c["vocab_size"])
    own(writer, c)
    pairs_of_letters = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(c["vocab_size"] - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pairs_of_letters + ["A", "B", "AB"])  # llama.cpp needs a merge
    writer.add_token_types([gguf.TokenType.NORMAL] * c["vocab_size"])
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(eos)
    writer.add_eos_token_id(eos)
    names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    for name, w in renamed(tensors_of(f"{folder}/model.safetensors"), c):
        if pairs and ".q_proj." in name:
            w = turned(w, heads)
        if pairs and ".k_proj." in name:
            w = turned(w, kv)
        writer.add_tensor(gguf_name(names, name), numpy.ascontiguousarray(w))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder, path = sys.argv[1:]
    with open(f"{folder}/expected.json") as f:
        want = json.load(f)["greedy"]
    with open(f"{folder}/config.json") as f:
        config = json.load(f)
    write(folder, path, config, min(set(range(config["vocab_size"])) - set(want["new_ids"])))  # llama.cpp stops at this token
    logits = dict(tensors_of(f"{folder}/expected.safetensors"))["greedy_logits"].astype("f8")
    logits -= numpy.log(numpy.exp(logits).sum(1, keepdims=True))
    tokens = Server(path).greedy(want["prompt_ids"], len(want["new_ids"]), 2)
    ids, logprobs = [t["id"] for t in tokens], [t["logprob"] for t in tokens]
    off = max(abs(row[i] - p) for row, i, p in zip(logits, ids, logprobs, strict=True))
    print(f"{path}: {len(ids)} log-probs of llama.cpp differ from transformers' by {off:.1e} nats at most")
    if ids != want["new_ids"] or off > TOLERANCE:
        sys.exit(f"llama.cpp continues with {ids}, transformers with {want['new_ids']}")


if __name__ == "__main__":
    main()
