"""The program mgrpo, which trains teams of language-model agents, as a Python package.

The console script `mgrpo` is the program itself. This module starts it, reads the runs that it writes, and turns a function into a reward.
It uses only the standard library.
"""
from ._program import Process, main, program, start
from ._reward import Case, Reward, reward
from ._run import Run

__all__ = ["Case", "Process", "Reward", "Run", "main", "program", "reward", "start"]
