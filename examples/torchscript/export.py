"""Exports a GPT-2 with random weights, a family that mgrpo does not have, as a TorchScript policy.

    python3 export.py FOLDER

writes policy.pt, config.json, model.safetensors and tokenizer.json, the words of the built-in task. Needs torch, transformers and
safetensors. A trace keeps the device on which it was made: for an agent on a GPU, move policy and example to "cuda" first.
"""

import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2Model


class Policy(torch.nn.Module):
    """forward(tokens, positions, segments), int64 [T] each, returns hidden states, float32 [T, hidden]."""

    def __init__(self, config):
        super().__init__()
        self.transformer = GPT2Model(config)

    def forward(self, tokens, positions, segments):
        own = (segments[:, None] == segments) & (positions[:, None] >= positions)
        mask = (~own).to(torch.float32) * torch.finfo(torch.float32).min  # a trace of torch.zeros would keep its device
        return self.transformer(tokens[None], attention_mask=mask[None, None], position_ids=positions[None], use_cache=False)[0][0]


def main(folder):
    os.makedirs(folder, exist_ok=True)
    tokenizer = os.path.join(os.path.dirname(__file__), "tokenizer.json")
    with open(tokenizer) as file:
        vocabulary = len(json.load(file)["model"]["vocab"])
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=vocabulary, n_positions=256, n_embd=96, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None)
    policy = Policy(config).eval()
    example = torch.arange(7) % vocabulary, torch.tensor([0, 1, 2, 3, 0, 1, 2]), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    torch.jit.trace(policy, example, check_trace=False).save(f"{folder}/policy.pt")
    parameters = dict(policy.named_parameters())
    save_file({name: p.detach().contiguous() for name, p in parameters.items()}, f"{folder}/model.safetensors")
    shutil.copy(tokenizer, f"{folder}/tokenizer.json")
    described = {
        "model_type": "torchscript", "vocab_size": vocabulary, "hidden_size": config.n_embd, "max_position_embeddings": config.n_positions,
        "head": "transformer.wte.weight", "parameters": {name: list(p.shape) for name, p in parameters.items()},
    }
    with open(f"{folder}/config.json", "w") as file:
        json.dump(described, file, indent=2)


main(*sys.argv[1:])
