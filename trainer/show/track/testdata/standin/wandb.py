"""Replaces the package wandb, and records its calls. `make test-tracking` tests the real package.

STAND_IN: step has the row at which a run continues, dies the row after which the process dies. fails is an error and hangs is true if
the run does not begin.
"""

import os
import time

from standin import behaviour, record

print("the client prints this")


def Histogram(np_histogram):
    return np_histogram


class Run:
    disabled = os.environ.get("WANDB_MODE") == "disabled"
    offline, id, dir = False, os.environ["WANDB_RUN_ID"], "/nowhere/files"
    starting_step = behaviour.get("step", 0)

    def define_metric(self, name, **more):
        record("define", name, more)

    def log(self, values, step, commit):
        record("log", step, values, commit)
        if step == behaviour.get("dies", -1):
            os._exit(3)

    def finish(self):
        record("finish")


def init(config):
    record("init", config, {k: v for k, v in os.environ.items() if k.startswith("WANDB_")})
    if "fails" in behaviour:
        raise RuntimeError(behaviour["fails"])
    if "hangs" in behaviour:
        time.sleep(600)
    return Run()
