"""Passes rows, JSON on standard input, to the client of Weights & Biases or MLflow, or to TensorBoard's writer. `mgrpo track` starts it with the tracker's name.

The environment has the server's address and credentials, as the client documents it (WANDB_MODE, MLFLOW_TRACKING_URI and so on). The
first line describes the run; the only answer, to this line, is the number of the next row. Each further line is a list of rows, or
`true` when the run is complete. The end of the input ends the program; its exit status is 0 if everything was delivered.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the client's output is for people


class WandB:
    def __init__(self, config):
        import wandb

        self.histogram, self.run = wandb.Histogram, wandb.init(config=config)
        if self.run.disabled:
            sys.exit("WANDB_MODE=disabled: nothing would be written")
        here = Path(self.run.dir).parent
        others = [p for p in here.parent.glob(f"offline-run-*-{self.run.id}") if p != here]
        if self.run.offline and others:  # on the server their rows would exist twice
            self.run.finish()
            shutil.rmtree(here)
            sys.exit(f"{others[0]} has this run offline already. If it was not synced, remove it and start again; "
                     "if it was, go on without WANDB_MODE=offline")
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        self.next = self.run.starting_step

    def log(self, rows):
        for row in rows:
            histograms = {name: self.histogram(np_histogram=(h["counts"], h["edges"])) for name, h in row["histograms"].items()}
            values = {"step": row["step"], "_timestamp": row["time"]}
            self.run.log(row["values"] | histograms | values, step=row["index"], commit=True)

    def end(self, complete):
        self.run.finish()


class MLflow:
    """A run that is identified by its tag mgrpo.run. Its tag mgrpo.rows has the number of its rows. MLflow has no histograms."""

    def __init__(self, run):
        import mlflow
        from mlflow import entities

        self.metric, self.client = entities.Metric, mlflow.MlflowClient()
        experiment = mlflow.set_experiment(run["experiment"]).experiment_id
        found = self.client.search_runs([experiment], f"tags.`mgrpo.run` = '{run['id']}'", max_results=1)
        if found:
            self.client.update_run(found[0].info.run_id, status="RUNNING")
        else:
            found = [self.client.create_run(experiment, start_time=run["began"], tags={"mgrpo.run": run["id"]}, run_name=run["name"])]
        self.id, old = found[0].info.run_id, found[0].data
        params = {key: text[:500] for key, text in run["params"].items()}  # old servers refuse longer ones
        for key in sorted(params.keys() & old.params.keys()):
            if params[key] != old.params[key]:
                print(f"MLflow keeps the first value of a parameter: {key} is {old.params[key]} there and {params[key]} now")
        self.client.log_batch(self.id, params=[entities.Param(key, params[key]) for key in sorted(params.keys() - old.params.keys())])
        self.next = int(old.tags.get("mgrpo.rows", 0))
        server = re.sub("//.*@", "//", mlflow.get_tracking_uri())  # without a password
        print(f"{server}/#/experiments/{experiment}/runs/{self.id}")

    def log(self, rows):
        metrics = [self.metric(name, v, int(row["time"] * 1000), row["step"]) for row in rows for name, v in row["values"].items()]
        self.client.log_batch(self.id, metrics=metrics)
        self.client.set_tag(self.id, "mgrpo.rows", rows[-1]["index"] + 1)

    def end(self, complete):
        if complete:  # an incomplete run may be continued
            self.client.set_terminated(self.id, "FINISHED")


class TensorBoard:
    """A file of events for each agent. Its bytes are a function of the rows, so each process writes it again from row 0."""

    def __init__(self, run):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.proto, self.writer, self.run = event_pb2.Event, summary_pb2, RecordWriter, run
        self.files, self.next = {}, 0

    def file(self, agent):
        if agent not in self.files:
            folder = Path(self.run["dir"], agent)
            folder.mkdir(parents=True, exist_ok=True)
            self.files[agent] = self.writer(open(folder / "events.out.tfevents.mgrpo", "wb"))
            self.files[agent].write(self.event(wall_time=self.run["began"], file_version="brain.Event:2").SerializeToString())
        return self.files[agent]

    def histogram(self, counts, edges):
        return self.proto.HistogramProto(min=edges[0], max=edges[-1], num=sum(counts), bucket_limit=edges, bucket=[0, *counts])

    def log(self, rows):
        for row in rows:
            values = {name: {"simple_value": v} for name, v in row["values"].items()}
            values |= {name: {"histo": self.histogram(**h)} for name, h in row["histograms"].items()}
            if values:  # all of one agent, whose name they begin with
                agent = next(iter(values)).partition("/")[0]
                summary = self.proto.Summary(value=[self.proto.Summary.Value(tag=name[len(agent) + 1 :], **v) for name, v in values.items()])
                self.file(agent).write(self.event(wall_time=row["time"], step=row["step"], summary=summary).SerializeToString())
        for file in self.files.values():
            file.flush()

    def end(self, complete):
        for file in self.files.values():
            file.close()


package = sys.argv[1]
try:
    tracker = {"wandb": WandB, "mlflow": MLflow, "tensorboard": TensorBoard}[package](json.loads(sys.stdin.readline()))
except ImportError as e:
    sys.exit(f"{sys.executable} has no package {package} ({e}): install it with `{sys.executable} -m pip install {package}`, "
             "or name the Python that has it with --python")
json.dump({"next": tracker.next}, answer)
print(file=answer, flush=True)

complete = False
for line in sys.stdin:
    rows = json.loads(line)
    if rows is True:
        complete = True
    else:
        tracker.log(rows)
tracker.end(complete)
