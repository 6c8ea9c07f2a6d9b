"""compare.py OWN PROGRAM: two runs must have the same tokens, log-probs, rewards, advantages and weights, bit for bit."""
import glob
import hashlib
import json
import os
import sys

FIELDS = ["tokens", "sampled", "log_probs", "version", "reward", "weight", "advantage", "expert"]


def trajectories(run):
    out = {}
    for path in glob.glob(os.path.join(run, "trajectories", "step-*", "*.jsonl")):
        with open(path, encoding="utf-8") as file:
            for line in map(json.loads, file):
                out[os.path.relpath(path, run), line["id"]] = {f: line.get(f) for f in FIELDS}
    return out


def weights(run):
    out = {}
    for path in (p for kind in ("*.safetensors", "*.state") for p in glob.glob(os.path.join(run, "checkpoints", "**", kind), recursive=True)):
        with open(path, "rb") as file:
            out[os.path.relpath(path, run)] = hashlib.file_digest(file, "sha256").hexdigest()
    return out


def differ(what, own, program):
    wrong = sorted(str(k) for k in own.keys() | program.keys() if own.get(k) != program.get(k))
    if wrong:
        sys.exit(f"{len(wrong)} of {len(own)} {what} differ, first {wrong[0]}")


own, program = sys.argv[1:]
said = trajectories(own)
learned = [path for (path, _), t in said.items() if t["advantage"]]
called = [t for (path, id), t in said.items() if path.endswith("solver.jsonl")]
sums = weights(own)
if not any("planner" in p for p in learned) or not any("solver" in p for p in learned) or len(set(sums.values())) <= 2:
    sys.exit(f"{own} learned nothing: the comparison would say nothing")
differ("trajectories", said, trajectories(program))
differ("files of weights", sums, weights(program))
print(f"{len(said)} trajectories ({len(called)} of the solver) and {len(sums)} files of weights are equal")
