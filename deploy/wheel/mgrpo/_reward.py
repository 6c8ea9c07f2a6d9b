"""A reward as a Python function: the protocol of `verifier: {kind: program}`, which docs/verifiers.md describes."""
from __future__ import annotations

import json
import math
import sys
from typing import Any, Callable, Dict, TextIO

Case = Dict[str, Any]  # the fields of docs/verifiers.md: question, answer, accepted, row, conversation and others


class Reward:
    """A function that scores a case, and the loop that serves it to mgrpo."""

    def __init__(self, function: Callable[[Case], float]) -> None:
        self.function = function

    def __call__(self, case: Case) -> float:
        return self.function(case)

    def serve(self, cases: TextIO | None = None, replies: TextIO | None = None) -> None:
        """Answers each line of standard input with a score until the input ends. An exception is the case's error, and not the run's end.

        While it serves, print writes to standard error, since standard output belongs to mgrpo.
        """
        cases, replies = cases or sys.stdin, replies or sys.stdout
        kept, sys.stdout = sys.stdout, sys.stderr
        try:
            for line in cases:
                case = json.loads(line)
                print(json.dumps({"id": case["id"], **self._reply(case)}), file=replies, flush=True)
        finally:
            sys.stdout = kept

    def _reply(self, case: Case) -> dict[str, Any]:
        try:
            score = float(self.function(case))
        except Exception as wrong:  # every failure of the function is its case's error
            return {"error": f"{type(wrong).__name__}: {wrong}"}
        if not math.isfinite(score):
            return {"error": f"the score is {score}"}
        return {"score": score}


def reward(function: Callable[[Case], float]) -> Reward:
    """Makes a reward of a function.

        @mgrpo.reward
        def score(case):
            return float(case["answer"].strip() in case["accepted"])

        if __name__ == "__main__":
            score.serve()
    """
    return Reward(function)
