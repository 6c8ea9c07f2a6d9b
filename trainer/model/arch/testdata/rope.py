"""Writes rope.json: rotary frequencies of transformers for every key that its modeling_rope_utils reads.

python rope.py > rope.json, with transformers 5.24.0, torch and gguf 0.19.0.
"""
import copy
import inspect
import json
import os
import re
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
import gguf
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, modeling_rope_utils

SIZES = dict(vocab_size=32, hidden_size=32, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             head_dim=16, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2)
FAMILIES = {name: dict(SIZES, model_type=name) for name in (
    "llama", "mistral", "qwen2", "qwen3", "olmo2", "smollm3", "phi3", "gemma3_text", "ministral3", "granite", "olmo3", "hunyuan_v1_dense", "exaone4",
    "ernie4_5", "glm4")}
BY_LAYER_TYPE = ("gemma3_text", "olmo3")
FAMILIES["mixtral"] = dict(SIZES, model_type="mixtral", num_local_experts=2, num_experts_per_tok=1)
FAMILIES["qwen3_moe"] = dict(SIZES, model_type="qwen3_moe", num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8)
for name in BY_LAYER_TYPE:
    FAMILIES[name].update(layer_types=["sliding_attention", "full_attention"], sliding_window=8)
FAMILIES["exaone4"].update(layer_types=["full_attention"] * 2, sliding_window=None)
FAMILIES["smollm3"].update(no_rope_layers=[1, 1])

SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 64, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    "proportional": {"factor": 2.0},
}
SUPPORTED = ("default", "linear", "dynamic", "yarn", "llama3")
OTHERS = {"rope_theta": [500000.0], "factor": [2.0, 1.0, None], "partial_rotary_factor": [0.5, 1.0], "attention_factor": [0.7, 1.0],
          "mscale": [0.707], "mscale_all_dim": [0.5], "original_max_position_embeddings": [32, 128], "beta_fast": [16, 0],
          "beta_slow": [2, 0], "truncate": [False, True, None], "low_freq_factor": [2.0], "high_freq_factor": [8.0],
          "short_factor": [[1.5] * 8], "long_factor": [[3.0] * 8], "rope_type": ["linear", "default"], "type": ["linear", "default"]}


def keys_read():
    source = inspect.getsource(modeling_rope_utils)
    names = set(re.findall(r'rope_parameters(?:_dict)?(?:\[layer_type\])?(?:\.get\(|\.setdefault\(|\[)"(\w+)"', source))
    return sorted(names - {"full_attention"})


def table(frequencies, amplitude):
    return {"frequencies": [float(f"{f:.7g}") for f in frequencies.tolist()], "amplitude": float(f"{amplitude:.7g}")}


def reference(config):
    with tempfile.TemporaryDirectory() as folder:
        json.dump(config, open(os.path.join(folder, "config.json"), "w"))
        try:
            with torch.device("cpu"):
                rotary = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).model.rotary_emb
        except Exception as e:
            return {"error": f"{type(e).__name__}: {e}"[:120]}
    tables = {}
    for layers in ("full_attention", "sliding_attention"):
        inv = getattr(rotary, f"{layers}_inv_freq", None)
        if inv is not None:
            tables[layers] = table(inv, getattr(rotary, f"{layers}_attention_scaling"))
    if not tables:
        tables["full_attention"] = table(rotary.inv_freq, rotary.attention_scaling)
    return tables


def supported(family, name, config):
    section = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if family == "ministral3" and config.get("rope_scaling", config.get("rope_parameters")) is not None and "llama_4_scaling_beta" not in section:
        return False
    if family in BY_LAYER_TYPE and ("type" in section and "rope_type" not in section or name == "scaled layers with a window"):
        return False
    section = section.get("full_attention", section)
    partial = section.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    kind = section.get("rope_type", section.get("type", "default"))
    null = any(v is None for k, v in section.items() if k != "factor" or kind != "yarn")
    return kind in (("default", "longrope") if family == "phi3" else SUPPORTED) and partial == 1.0 and not null and not (
        family in BY_LAYER_TYPE and section.get("truncate") is False and kind == "yarn")


def variants(family):
    base = FAMILIES[family]
    yield "nothing", {}
    for kind, scaling in SCALINGS.items():
        section = dict(scaling, rope_type=kind)
        if family in BY_LAYER_TYPE:
            yield kind + " by layer type", {"rope_parameters": {"full_attention": dict(section, rope_theta=1e6),
                                                                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
        else:
            yield kind + " in rope_parameters", {"rope_parameters": dict(section, rope_theta=30000.0), "rope_theta": 20000.0}
        yield kind, {"rope_scaling": section, "rope_theta": 20000.0}
        if family not in ("llama", "gemma3_text", "phi3"):
            continue
        for key, values in OTHERS.items():
            for value in values:
                if key not in ("rope_type", "type") or kind != "longrope":
                    yield f"{kind} with {key} {value}", {"rope_scaling": dict(section, **{key: value})}
                yield f"{kind} beside {key} {value}", {"rope_scaling": section, key: value}
        for key in scaling:
            yield f"{kind} without {key}", {"rope_scaling": {k: v for k, v in section.items() if k != key}}
    for kind in ("yarn", "llama3"):
        section = {k: v for k, v in dict(SCALINGS[kind], rope_type=kind).items() if k != "original_max_position_embeddings"}
        yield kind + " beside its original length", {"rope_scaling": section, "original_max_position_embeddings": 64}
        yield kind + " with type", {"rope_scaling": dict({k: v for k, v in section.items() if k != "rope_type"}, type=kind)}
    yield "yarn without a factor", {"rope_scaling": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64}}
    yield "yarn without a factor beside its original length", {"rope_scaling": {"rope_type": "yarn", "factor": None}, "original_max_position_embeddings": 64}
    yield "yarn of both weights", {"rope_scaling": dict(SCALINGS["yarn"], rope_type="yarn", mscale=0.7, mscale_all_dim=1.3)}
    if family not in BY_LAYER_TYPE:
        yield "an empty rope_scaling", {"rope_scaling": {}, "rope_parameters": dict(SCALINGS["linear"], rope_type="linear", rope_theta=30000.0)}
        yield "both sections", {"rope_scaling": dict(SCALINGS["linear"], rope_type="linear"), "rope_parameters": {"rope_type": "default", "rope_theta": 30000.0}}
    if family == "hunyuan_v1_dense":
        for alpha in (1000.0, 1.0, 0.0, None):
            yield f"dynamic with alpha {alpha}", {"rope_scaling": {"rope_type": "dynamic", "factor": 1.0, "alpha": alpha}}
    if family == "ministral3":
        yield "queries that grow", {"rope_parameters": dict(SCALINGS["yarn"], rope_type="yarn", rope_theta=1e6, llama_4_scaling_beta=0.1)}
        yield "queries that grow, nothing scaled", {"rope_scaling": {"rope_type": "default", "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.2}}
    if family in BY_LAYER_TYPE:
        yield "rope_scaling over a layer type", {"rope_scaling": {"factor": 2.0}, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}}
        yield "scaled layers with a window", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                                                  "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}}


def main():
    cases = []
    for family in FAMILIES:
        for name, more in variants(family):
            config = dict(copy.deepcopy(FAMILIES[family]), **copy.deepcopy(more))
            want = reference(config)
            cases.append({"name": name, "family": family, "config": more, "supported": supported(family, name, config) and "error" not in want, **want})
    rope = gguf.constants.Keys.Rope
    out = {"transformers": transformers.__version__, "families": FAMILIES, "keys": keys_read(),
           "gguf": sorted(v.replace("{arch}.rope.", "") for k, v in vars(rope).items() if k.isupper()), "cases": cases}
    print("{" + ",\n".join(f'"{k}": ' + (json.dumps(v) if k != "cases" else "[\n" + ",\n".join(map(json.dumps, v)) + "]") for k, v in out.items()) + "}")


main()
