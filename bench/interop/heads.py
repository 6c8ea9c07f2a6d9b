"""heads.py OUT: writes the golden models of CASES with random weights and heads of 32, which vLLM's attention on a CPU supports.

Each is a folder OUT/CASE in float32 with the published layout. Values in config.json that depend on the size of heads change with it;
the others are the golden case's. The vocabulary is the small team's.
"""
import copy
import json
import os
import sys

import torch

HERE = os.path.dirname(__file__)
REPOSITORY = os.path.join(HERE, "..", "..")
sys.path.append(os.path.join(HERE, "..", "goldens"))
from families import build, publish, value

# One case of each family.
CASES = ["families/ernie4_5-pairs", "families/exaone4-hybrid", "families/gemma-scaled", "families/gemma3-layer-types", "families/gemma4-shared-keys", "families/glm4-half-rotary",
         "families/gpt_oss-sinks", "families/granite-multipliers", "families/hunyuan-norms-after-rope", "families/lfm2_moe-plain", "models/llama-rope-llama3",
         "families/mistral-window", "families/mixtral-top2", "families/olmo2-post-norm", "families/olmo3-windows", "families/phi3-fused",
         "models/qwen2-tiny", "families/qwen2_moe-shared", "models/qwen3-tiny", "families/qwen3_5-published", "families/qwen3_5_moe-shared", "families/qwen3moe-top2", "families/smollm3-nope"]
HEAD = 32


def widened(config):
    """Returns the configuration with heads of HEAD."""
    c = copy.deepcopy(config)
    heads = c["num_attention_heads"]
    c.update(vocab_size=320, hidden_size=heads * HEAD, torch_dtype="float32")
    for key, wide in (("head_dim", HEAD), ("global_head_dim", 2 * HEAD), ("vocab_size_per_layer_input", 320), ("block_dim", heads * HEAD),
                      ("conv_dim", heads * HEAD), ("conv_dim_out", heads * HEAD)):
        if key in c:
            c[key] = wide
    return c


def main():
    for case in CASES:
        with open(os.path.join(REPOSITORY, "testdata", case, "config.json")) as f:
            config = widened(json.load(f))
        model = build(config)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(value(name, p.shape, 1))
        folder = os.path.join(sys.argv[1], os.path.basename(case))
        publish(model.to(torch.float32), folder, config)
        open(os.path.join(folder, "expected.json"), "w").close()  # TestGoldenRoundTrip saves folders with this file
        print(case, config["model_type"], flush=True)


main()
