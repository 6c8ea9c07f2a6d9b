"""vLLM on the CPU, for the suite "rollout". It needs other versions of packages than the other peers,
so it runs in the environment of bench/engines/setup.sh, in a process of its own."""
import json
import os
import subprocess

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(HERE, "..", "..", "build", "engines", "vllm", "bin", "python")


class Rollout:
    """vllm.LLM.generate, every sequence its own row, eos disabled."""

    checks_alone = True

    def __init__(self, case):
        self.case, threads = case, torch.get_num_threads()
        self.rows = [p for p in case["prompts"] for _ in range(case["rollouts"])]
        chosen = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
                  "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self.process = subprocess.Popen(
            [PYTHON, os.path.join(HERE, "vllm_process.py"), case["folder"], case["dtype"], str(len(self.rows)),
             str(max(map(len, self.rows)) + case["new_tokens"] + 1)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=inherited | chosen)
        self.version = f"vllm-cpu {self.answer()}"
        self.settings = {"device": "cpu", "threads": threads, "dtype": case["dtype"], "rows": len(self.rows), "environment": chosen,
                         "peak": "memory of the process"}

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM ended with status {self.process.wait()}")
        return json.loads(line)

    def run(self):
        n = self.case["new_tokens"]
        sampled = self.ask(sample=self.rows, new_tokens=n)
        assert sampled == n * len(self.rows), sampled

    def check(self):
        """Returns the error of the log-probs compared with float64, relative to the largest."""
        case, want = self.case, self.case.get("log_probs") or []
        rows = [case["prompts"][i] + case["completions"][i * case["rollouts"]] for i in range(len(want))]
        got = [p[-len(w):] for p, w in zip(self.ask(score=rows), want, strict=True)]
        worst = max(abs(g - w) for gs, ws in zip(got, want, strict=True) for g, w in zip(gs, ws, strict=True))
        return worst / max(abs(w) for ws in want for w in ws)

    def peak(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def prepare(case, _):
    return Rollout(case)
