"""Writes the TorchScript policies of the tests of refusals: python policies.py FOLDER

The modules have the signature in docs/models.md, "Other architectures". policy.pt has two parameters. tied.pt has the first of them under a
second name, too. The hidden states of detached.pt lead no gradient back. The tests write config.json and the weights.
"""
import sys

import torch


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.zeros(4, 2))
        self.bias = torch.nn.Parameter(torch.zeros(2))

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        return self.embedding[tokens] + self.bias


class Tied(Policy):
    def __init__(self):
        super().__init__()
        self.head = self.embedding


class Detached(Policy):
    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        return self.embedding[tokens].detach() + self.bias.detach()


for name, module in ("policy", Policy()), ("tied", Tied()), ("detached", Detached()):
    torch.jit.save(torch.jit.script(module), f"{sys.argv[1]}/{name}.pt")
