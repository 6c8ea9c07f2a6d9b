"""Makes the TorchScript policy of the tests: a golden model as a module whose parameters have the names of its weights.

bench/goldens/torchscript.sh GOLDEN OUT

reads GOLDEN/config.json and writes OUT/policy.pt, whose parameters are 0, and OUT/config.json. The weights and the expected numbers are
those of the golden model.
"""

import json
import os
import sys

import torch
import transformers

transformers.logging.set_verbosity_error()


def rotary(self, x, position_ids):
    """Computes the tables of LlamaRotaryEmbedding without its call of to(x.device), which a trace would keep."""
    angles = position_ids[:, :, None].to(torch.float32) * self.inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class Policy(torch.nn.Module):
    """The golden model without its head, as a module of policies."""

    def __init__(self, config):
        super().__init__()
        self.model = transformers.AutoModel.from_config(config, attn_implementation="eager")
        self.model.rotary_emb.forward = rotary.__get__(self.model.rotary_emb)
        for p in self.parameters():
            p.data.zero_()

    def forward(self, tokens, positions, segments):
        own = (segments[:, None] == segments) & (positions[:, None] >= positions)
        mask = (~own).to(torch.float32) * torch.finfo(torch.float32).min  # a trace of torch.zeros would keep its device
        return self.model(tokens[None], attention_mask=mask[None, None], position_ids=positions[None], use_cache=False)[0][0]


def main(golden, out):
    config = transformers.AutoConfig.from_pretrained(golden)
    policy = Policy(config).eval()
    example = torch.arange(7), torch.tensor([0, 1, 2, 3, 0, 1, 2]), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    os.makedirs(out, exist_ok=True)
    torch.jit.trace(policy, example, check_trace=False).save(f"{out}/policy.pt")
    parameters = {name: list(p.shape) for name, p in policy.named_parameters()}
    described = {
        "model_type": "torchscript", "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "max_position_embeddings": config.max_position_embeddings, "head": "model.embed_tokens.weight", "parameters": parameters,
        "bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id,
    }
    with open(f"{out}/config.json", "w") as f:
        json.dump(described, f, indent=1)


main(*sys.argv[1:])
