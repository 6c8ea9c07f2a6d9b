"""llama.cpp on the GGUF file of a case of the suite "decode".

bench/peers/llama/decode.cpp runs in a separate process. It is built for this processor.

A case is {"suite": "decode", "file", "prompts": [[id]], "new_tokens", "reading": whether the reading of prompts is measured,
"completions", "log_probs": the log-probs of the first completion after the first prompt}.
"""
import os

import torch

from child import Child

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = os.path.join(HERE, "..", "..", "build", "llama.cpp")


def joined(ids):
    return ",".join(map(str, ids))


class Decode(Child):
    checks_alone = True

    def __init__(self, case):
        self.case, threads = case, torch.get_num_threads()
        prompts, fresh = case["prompts"], case["new_tokens"]
        super().__init__(
            "llama.cpp", [os.path.join(SITE, "decode"), case["file"], str(threads), str(len(prompts)), str(len(prompts[0]) + max(fresh, 2) + 1)])
        system = self.answer().strip()
        self.ask(f"prompts {fresh - 1} {' '.join(map(joined, prompts))}")
        with open(os.path.join(SITE, "version"), encoding="utf-8") as version:
            self.version = version.read().strip()
        self.settings = {"device": "cpu", "threads": threads, "system": system, "memory": "of the process",
                         "cache": "llama.cpp's defaults: float16, flash attention where it can", "sampling": "temperature 1",
                         "max_error_against": "mgrpo's forward pass in float32"}
        self.ready = False

    def reset(self):
        if not self.ready and not self.case.get("reading"):
            self.ask("prefix")
            self.ready = True

    def run(self):
        self.ask("prompt" if self.case.get("reading") else "decode")

    def check(self):
        want, prompt = self.case["log_probs"][0], self.case["prompts"][0]
        got = [float(p) for p in self.ask(f"score {joined(prompt)} {joined(self.case['completions'][0])}").split()]
        self.ready = False
        return max(abs(g - w) for g, w in zip(got, want, strict=True)) / max(map(abs, want))


def prepare(case, _):
    return Decode(case)
