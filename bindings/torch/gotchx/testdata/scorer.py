"""Writes the TorchScript modules of the tests: python scorer.py FOLDER

scorer.pt has the signature in docs/verifiers.md. Its score is the share of even token ids among the ids that the mask keeps, so a test
can calculate it without PyTorch. wrong.pt returns a score per token, and nan.pt returns NaN.
"""
import sys

import torch


class Scorer(torch.nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        even = (tokens % 2 == 0) & (mask != 0)
        return even.sum(1).float() / mask.sum(1).float()


class Wrong(torch.nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return tokens.float()


class NaN(torch.nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return tokens.sum(1).float() * float("nan")


for name, module in ("scorer", Scorer()), ("wrong", Wrong()), ("nan", NaN()):
    torch.jit.save(torch.jit.script(module), f"{sys.argv[1]}/{name}.pt")
