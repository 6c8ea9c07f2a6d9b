#!/usr/bin/env python3
"""serve.py: one provider of one case, told what to do by lines of JSON (bench/measure/peer.go has the protocol).

A case's "suite" names the module that knows it: kernels.py, else phases.py. Its prepare(case, provider) gives an
object with
    version, settings   what is told in the results
    reset()             before each run, untimed; may be absent
    run()               the work
    check()             after a run: its largest error against float64, each output relative to its largest value
    peak()              bytes; where it is absent the growth of resident memory during a run with a cold cache is told
    close()             may be absent
"""
import importlib
import json
import os
import sys
import time
import traceback

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


def optional(work, name):
    return getattr(work, name, lambda: None)


def samples(work, repeat, cache, other):
    """Times work; between runs with a cold cache it goes over `other`, which is larger than any cache."""
    reset = optional(work, "reset")
    if cache == "hot":
        reset()
        work.run()
    seconds, extra = [], 0
    for _ in range(repeat):
        reset()
        if cache == "cold":
            other.add_(1)
            s, grown = growth(work.run)
            extra = max(extra, grown)
        else:
            s = timed(work.run)
        seconds.append(s)
    return {"seconds": seconds, "peak_extra_bytes": optional(work, "peak")() or extra}


def answer(request, state):
    op = request["op"]
    if op == "prepare":
        import torch
        torch.set_num_threads(request["threads"])
        state["other"] = torch.zeros(96 << 20, dtype=torch.uint8)
        case = request["case"]
        module = importlib.import_module("kernels" if case["suite"] == "kernels" else "phases")
        work = state["work"] = module.prepare(case, request["provider"])
        return {"ok": True, "version": work.version, "settings": work.settings}
    work = state["work"]
    if op == "run":
        return samples(work, request["repeat"], request.get("cache", "hot"), state["other"])
    if op == "check":
        optional(work, "reset")()
        work.run()
        return {"max_error": work.check()}
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
    if "work" in state:
        optional(state["work"], "close")()


main()
