#!/usr/bin/env python3
"""serve.py: one provider of one case, told what to do by lines of JSON (bench/measure/peer.go has the protocol).

A case's "suite" names the module that knows it. Its prepare(case, provider, threads) gives an object with
    version, settings   what is told in the results
    reset()             before each run, untimed
    run()               the work
    error()             after a run: its largest error against float64, each output relative to its largest value
"""
import importlib
import json
import os
import sys
import time
import traceback

MODULES = {"kernels": "kernels", "rollout": "phases", "learner": "phases", "step": "phases"}


def resident(name):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


def growth(work):
    """Runs work and returns its seconds and by how many bytes resident memory grew at most."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
        refs.write("5")  # the peak begins anew
    before = resident("VmRSS:")
    seconds = timed(work)
    return seconds, max(0, resident("VmHWM:") - before)


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Cache:
    """Evicts what the work has cached by going over something else."""

    def __init__(self):
        import torch
        self.other = torch.zeros(96 << 20, dtype=torch.uint8)

    def evict(self):
        self.other.add_(1)


def samples(work, repeat, cold):
    if not cold:
        work.reset()
        work.run()
    seconds, extra = [], 0
    for _ in range(repeat):
        work.reset()
        if cold:
            cold.evict()
            s, grown = growth(work.run)
            extra = max(extra, grown)
        else:
            s = timed(work.run)
        seconds.append(s)
    return {"seconds": seconds, "peak_extra_bytes": extra}


def answer(request, state):
    op = request["op"]
    if op == "prepare":
        import torch
        torch.set_num_threads(request["threads"])
        case = request["case"]
        state["work"] = importlib.import_module(MODULES[case["suite"]]).prepare(case, request["provider"], request["threads"])
        state["cache"] = Cache()
        return {"ok": True, "version": state["work"].version, "settings": state["work"].settings}
    work = state["work"]
    if op == "run":
        return samples(work, request["repeat"], state["cache"] if request.get("cache") == "cold" else None)
    if op == "check":
        work.reset()
        work.run()
        return {"max_error": work.error()}
    raise ValueError(f"no operation {op!r}")


def main():
    # Answers alone go to standard output: what a library prints there goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    state = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "close":
            break
        try:
            reply = answer(request, state)
        except Exception as e:  # told in the results
            traceback.print_exc()
            reply = {"ok": False, "why": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"}
        print(json.dumps(reply), file=out, flush=True)


main()
