#!/usr/bin/env python3
"""Trains the quickstart with several seeds, instruction sets and numbers of threads, and writes the results.

  bench/studies/quickstart/seeds.py                            after make build; about a minute a run on an idle core
  bench/studies/quickstart/seeds.py --seeds 0,1,2 --isa avx2

After each run the results so far are written to bench/results/quickstart-seeds.json. The same command continues after an interruption if
bin/mgrpo and examples/quickstart/team.yaml are the same; otherwise it begins again. Runs with 1 thread come first.
"""
import argparse
import hashlib
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONFIG = "examples/quickstart/team.yaml"
WANTED = {"smallest": 0.75, "mean": 0.82}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    p.add_argument("--isa", default="avx512,avx2", help="values of MGRPO_CPU_ISA")
    p.add_argument("--threads", default="1,2", help="values of run.threads")
    p.add_argument("--runs", default=str(ROOT / "runs" / "quickstart-seeds"), help="folder of the runs")
    p.add_argument("--out", default=str(ROOT / "bench" / "results" / "quickstart-seeds.json"))
    return p.parse_args()


def version():
    lines = subprocess.run([ROOT / "bin/mgrpo", "version"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if len(line.split()) > 1}


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


def train(folder, seed, isa, threads):
    """Trains once. Returns the curve, the processor's seconds and the clock's seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with open(f"{folder}.log", "w", encoding="utf-8") as log:
        subprocess.run([ROOT / "bin/mgrpo", "train", CONFIG, "--set", f"run.seed={seed}", "--set", f"run.threads={threads}", "--set", f"run.dir={folder}"],
                       cwd=ROOT, env={**os.environ, "MGRPO_CPU_ISA": isa}, stdout=log, stderr=log, check=True)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    curve = {}
    with open(folder / "metrics.jsonl", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            if record["kind"] == "eval" and "accuracy" in record["values"]:
                curve[record["step"]] = record["values"]["accuracy"]
    shutil.rmtree(folder)
    return [{"step": s, "accuracy": curve[s]} for s in sorted(curve)], round(cpu, 1), round(seconds, 1)


def spread(values):
    return {"smallest": min(values), "mean": statistics.fmean(values), "largest": max(values), "sample_std": statistics.stdev(values) if len(values) > 1 else None}


def write(out, result, combinations):
    runs = result["runs"]
    result["combinations"] = f"{len(runs)} of {combinations}"
    for when in ("before", "after"):
        result[when] = spread([r[when] for r in runs])
    result["after_by"] = {f"{isa}, {n} thread{'s' * (n > 1)}": spread([r["after"] for r in runs if (r["isa"], r["threads"]) == (isa, n)])
                          for isa, n in sorted({(r["isa"], r["threads"]) for r in runs})}
    result["cpu_seconds"] = spread([r["cpu_seconds"] for r in runs])
    result["reached"] = result["after"]["smallest"] >= WANTED["smallest"] and result["after"]["mean"] >= WANTED["mean"]
    partial = pathlib.Path(f"{out}.part")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.replace(out)


def main():
    o = options()
    seeds, sets, threads = [int(s) for s in o.seeds.split(",")], o.isa.split(","), [int(n) for n in o.threads.split(",")]
    order = [(n, seed, isa) for n in threads for seed in seeds for isa in sets]
    build = version()
    result = {
        "what": f"{CONFIG}: held-out accuracy at temperature 1, 192 queries x 4 samples, after the cold start and after the last step",
        "command": "bench/studies/quickstart/seeds.py",
        "wanted": WANTED,
        "commit": build["mgrpo"],
        "config_sha256": hashlib.sha256((ROOT / CONFIG).read_bytes()).hexdigest(),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "features": build["CPU"], "libtorch": build["LibTorch"], "go": build["Go"],
                    "load": "shared with other work, so the seconds by the clock show nothing"},
        "runs": [],
    }
    try:
        there = json.loads(pathlib.Path(o.out).read_text(encoding="utf-8"))
        if all(there.get(key) == result[key] for key in ("commit", "config_sha256")):
            result["runs"] = there["runs"]
    except FileNotFoundError:
        pass
    done = {(r["threads"], r["seed"], r["isa"]) for r in result["runs"]}
    for n, seed, isa in order:
        if (n, seed, isa) in done:
            continue
        curve, cpu, seconds = train(pathlib.Path(o.runs).resolve() / f"{isa}-{n}-{seed}", seed, isa, n)
        result["runs"].append({"seed": seed, "isa": isa, "threads": n, "before": curve[0]["accuracy"], "after": curve[-1]["accuracy"],
                               "curve": curve, "cpu_seconds": cpu, "seconds": seconds})
        write(o.out, result, len(order))
        print(f"seed {seed}, {isa}, {n} thread{'s' * (n > 1)}: {curve[0]['accuracy']:.2f} -> {curve[-1]['accuracy']:.2f}  "
              f"({cpu:.0f} s of the processor, {len(result['runs'])} of {len(order)})", flush=True)
    a = result["after"]
    print(f"{result['combinations']} runs: after {a['smallest']:.2f} to {a['largest']:.2f}, mean {a['mean']:.2f}")
    return 0 if result["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
