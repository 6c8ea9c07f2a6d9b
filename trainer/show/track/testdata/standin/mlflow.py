"""Replaces the package mlflow. It keeps runs in a file, and records its calls. `make test-tracking` tests the real package.

STAND_IN: fails is an error if the run does not begin. dies is true if the process dies after the first metrics.
"""

import json
import os
import sys
from types import SimpleNamespace as Object

from standin import behaviour, record

entities = sys.modules["mlflow.entities"] = sys.modules["mlflow"]
kept = os.environ["STAND_IN_LOG"] + ".runs"
runs = json.load(open(kept)) if os.path.exists(kept) else []


def Metric(*fields):
    return fields


def Param(*fields):
    return fields


def get_tracking_uri():
    return os.environ["MLFLOW_TRACKING_URI"]


def set_experiment(name):
    if "fails" in behaviour:
        raise RuntimeError(behaviour["fails"])
    record("experiment", name, get_tracking_uri())
    return Object(experiment_id="1")


def view(run):
    return Object(info=Object(run_id=run["id"]), data=Object(params=run["params"], tags=run["tags"]))


class MlflowClient:
    def keep(self, *call):
        json.dump(runs, open(kept, "w"))
        record(*call)

    def search_runs(self, experiments, text, max_results):
        return [view(r) for r in runs if text == f"tags.`mgrpo.run` = '{r['tags']['mgrpo.run']}'"]

    def update_run(self, id, status):
        record("status", status)

    def create_run(self, experiment, start_time, tags, run_name):
        runs.append({"id": str(len(runs)), "params": {}, "tags": tags})
        self.keep("create", run_name, start_time)
        return view(runs[-1])

    def log_batch(self, id, metrics=(), params=()):
        runs[int(id)]["params"].update(params)
        if metrics:
            self.keep("log", [f"{name}@{step}" for name, _, _, step in metrics])
            if "dies" in behaviour:
                os._exit(3)

    def set_tag(self, id, key, value):
        runs[int(id)]["tags"][key] = str(value)
        self.keep("tag", key, value)

    def set_terminated(self, id, status):
        record("status", status)
