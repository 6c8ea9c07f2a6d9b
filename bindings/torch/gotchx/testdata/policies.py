"""Writes the TorchScript policies of the tests of refusals and of step: python policies.py FOLDER

The modules have the signature in docs/models.md, "Other architectures". policy.pt has two parameters. tied.pt has the first of them under a
second name, too. The hidden states of detached.pt lead no gradient back. step.pt is a layer of attention whose step has keys and values as
its state. The step of faults.pt fails in a way that its first token selects, and that of single.pt returns one tensor. The tests write
config.json and the weights.
"""
import sys
from typing import Tuple

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


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.zeros(32, 16))
        self.place = torch.nn.Parameter(torch.zeros(64, 16))
        self.qkv = torch.nn.Parameter(torch.zeros(16, 48))

    def attend(self, x: torch.Tensor, q: torch.Tensor, kv: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        scores = (q @ kv[:, :16].t()).masked_fill(~sees, -1e30)
        return x + scores.softmax(1) @ kv[:, 16:]

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        x = self.embedding[tokens] + self.place[positions]
        qkv = x @ self.qkv
        sees = (segments[:, None] == segments) & (positions[:, None] >= positions)
        return self.attend(x, qkv[:, :16], qkv[:, 16:], sees)

    @torch.jit.export
    def step(self, tokens: torch.Tensor, positions: torch.Tensor, state: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding[tokens] + self.place[positions]
        qkv = x @ self.qkv
        state = torch.cat([state.view(-1, 32), qkv[:, 16:]])
        sees = positions[:, None] >= torch.arange(state.shape[0], device=state.device)
        return self.attend(x, qkv[:, :16], state, sees), state


class Faults(Policy):
    @torch.jit.export
    def step(self, tokens: torch.Tensor, positions: torch.Tensor, state: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        hidden = self.embedding[tokens] + self.bias
        if int(tokens[0]) == 0:
            return hidden[:-1], state
        if int(tokens[0]) == 1:
            return hidden.double(), state
        if int(tokens[0]) == 2:
            return hidden / 0, state
        assert int(tokens[0]) != 3, "token 3"
        return hidden, state


class Single(Policy):
    @torch.jit.export
    def step(self, tokens: torch.Tensor, positions: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self.embedding[tokens] + self.bias


for name, module in (
    ("policy", Policy()), ("tied", Tied()), ("detached", Detached()), ("step", Step()), ("faults", Faults()), ("single", Single())
):
    torch.jit.save(torch.jit.script(module), f"{sys.argv[1]}/{name}.pt")
