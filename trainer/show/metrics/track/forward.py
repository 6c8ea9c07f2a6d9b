"""Hands rows, JSON lines on standard input, to the client of Weights & Biases. `mgrpo track --wandb` starts it.

Which run it is, where and in which mode, the environment says, as the client documents it (WANDB_PROJECT, WANDB_RUN_ID,
WANDB_MODE and so on). The first line is the run's configuration; the answer to it, the only one, says which row is next.
The end of the input is the end of the work; the exit status says whether everything was delivered.
"""

import json
import os
import shutil
import sys
from pathlib import Path

answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the client prints is for people

try:
    import wandb
except ImportError as e:
    sys.exit(f"{sys.executable} has no W&B client ({e}): install it with `{sys.executable} -m pip install wandb`, "
             "or name the Python that has it with --python")

run = wandb.init(config=json.loads(sys.stdin.readline()))
if run.disabled:
    sys.exit("WANDB_MODE=disabled: nothing would be written")
here = Path(run.dir).parent
others = [p for p in here.parent.glob(f"offline-run-*-{run.id}") if p != here]
if run.offline and others:  # on the server their rows would be there twice
    run.finish()
    shutil.rmtree(here)
    sys.exit(f"{others[0]} has this run offline already. If it was not synced, remove it and start again; "
             "if it was, go on without WANDB_MODE=offline")
run.define_metric("step")
run.define_metric("*", step_metric="step")
json.dump({"next": run.starting_step}, answer)
print(file=answer, flush=True)

for line in sys.stdin:
    row = json.loads(line)
    values = row["values"]
    for name, h in row["histograms"].items():
        values[name] = wandb.Histogram(np_histogram=(h["counts"], h["edges"]))
    run.log(values, step=row["index"], commit=True)
run.finish()
