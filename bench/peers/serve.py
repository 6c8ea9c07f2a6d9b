#!/usr/bin/env python3
"""serve.py: runs providers of cases. Its commands are lines of JSON (bench/measure/peer.go has the protocol).

A case's "suite" selects its module: kernels.py, llama.py for "decode", else phases.py. For the provider "vllm" it is vllm_peer.py. The
module's prepare(case, provider) returns an object with
  version, settings   for the results
  reset()             before each run, untimed; may be absent
  run()               the work
  check()             after a run: its largest error against float64, each output relative to its largest value
  checks_alone        true if check() may be called without a run before it; may be absent
  peak()              bytes; if absent, the growth of memory during a run with a cold cache is reported
  close()             may be absent
"""
import gc
import importlib
import json
import os
import sys
import time
import traceback


def resident(name):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


class Processor:
    """The clock of work on this process's own threads; bench/measure/clock.go is the other side."""

    def __init__(self, torch, evict):
        self.other = torch.zeros(evict, dtype=torch.uint8)

    def evict(self):
        self.other.add_(1)

    def time(self, cold, work):
        """Runs work. Returns its seconds and, if cold, the largest growth of resident memory in bytes."""
        before = self.begin() if cold else 0
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        return seconds, max(0, resident("VmHWM:") - before) if cold else 0

    def tidy(self):
        pass

    def begin(self):
        with open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
            refs.write("5")  # the peak begins again
        return resident("VmRSS:")


class GPU:
    """The clock of a GPU's stream: the work of evict continues while the measured work is launched."""

    def __init__(self, torch, device):
        torch.cuda.set_device(device)
        self.torch = torch
        self.other = torch.empty(512 << 20, dtype=torch.uint8, device=device)
        self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def evict(self):
        self.other.zero_()

    def tidy(self):
        """Frees the memory of a check in float64, because other providers share the GPU."""
        self.torch.cuda.empty_cache()

    def time(self, _, work):
        cuda = self.torch.cuda
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        self.start.record()
        work()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop) / 1e3, cuda.max_memory_allocated() - before


def optional(work, name):
    return getattr(work, name, lambda: None)


def samples(work, repeat, cache, clock):
    reset = optional(work, "reset")
    if cache == "hot":
        reset()
        work.run()
    seconds, extra = [], 0
    for _ in range(repeat):
        reset()
        if cache == "cold":
            clock.evict()
        s, grown = clock.time(cache == "cold", work.run)
        seconds.append(s)
        extra = max(extra, grown)
    return {"seconds": seconds, "peak_extra_bytes": optional(work, "peak")() or extra}


def answer(request, state):
    op, number = request["op"], request["work"]
    if op == "prepare":
        import torch

        import inputs
        torch.set_num_threads(request["threads"])
        inputs.device = request["device"]
        if "clock" not in state:
            state["clock"] = Processor(torch, request["evict"]) if inputs.device == "cpu" else GPU(torch, inputs.device)
        case = request["case"]
        by_suite = {"kernels": "kernels", "decode": "llama"}.get(case["suite"], "phases")
        module = importlib.import_module("vllm_peer" if request["provider"] == "vllm" else by_suite)
        work = state["works"][number] = module.prepare(case, request["provider"])
        return {"ok": True, "version": work.version, "settings": work.settings}
    if op == "close":
        close(state, number)
        return {"ok": True}
    work = state["works"][number]
    if op == "run":
        return samples(work, request["repeat"], request.get("cache", "hot"), state["clock"])
    if op == "check":
        if not getattr(work, "checks_alone", False):
            optional(work, "reset")()
            work.run()
        worst = work.check()
        state["clock"].tidy()
        return {"max_error": worst}
    raise ValueError(f"no operation {op!r}")


def close(state, number):
    """Frees the memory of a provider and its compiled code, because PyTorch keeps compiled code for only a few shapes."""
    work = state["works"].pop(number, None)
    if work is not None:
        optional(work, "close")()
    del work
    if torch := sys.modules.get("torch"):
        torch.compiler.reset()
    gc.collect()
    if "clock" in state:
        state["clock"].tidy()


def main():
    # Only answers go to standard output: the output of libraries goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    state = {"works": {}}
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line), state)
        except Exception as e:  # reported in the results
            traceback.print_exc()
            reply = {"ok": False, "why": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"}
        print(json.dumps(reply), file=out, flush=True)
    for work in state["works"].values():
        optional(work, "close")()


main()
