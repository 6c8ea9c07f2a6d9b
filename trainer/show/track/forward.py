"""Forwards the records of a run to Weights & Biases, MLflow or TensorBoard with the tracker's own package. `mgrpo track` starts it.

Standard input has one line, a JSON object: the tracker; "to", its project, experiment or folder; the run's folder and name; its settings
by key, as YAML; and the names of counts by tool, which are not histograms. While the input is open, the script waits for further records
until the run is complete, or until the input ends if "more" is true. It prints an empty line when the tracker has begun the run, and at
the end a JSON object with the numbers of rows, of repeated records and of damaged lines, and an error for the user. The environment has
the server's address and credentials, as the client documents it.

The script does not store any state: metrics.jsonl only grows, so the n-th row is always the same, and the tracker reports how many rows
it has.
"""

import hashlib
import json
import math
import os
import re
import select
import shutil
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

CHUNK = 1000  # largest number of rows that are read at once
MAX_LINE = 4 << 20  # bytes of the longest line; a record has a few kilobytes


class Records:
    """The rows of metrics.jsonl, from its beginning and then as it grows.

    A run that went back to a checkpoint reports steps again. Readers of the file keep the last report. A tracker cannot remove a step,
    so this class keeps the first report.
    """

    def __init__(self, run):
        self.path, self.by_tool = os.path.join(run["dir"], "metrics.jsonl"), run["by_tool"]
        self.file = open(self.path, "rb")
        self.part = self.first = b""  # a last line that is not written to its end yet, and the first line
        self.newest = {}  # step by agent and kind
        self.rows = self.repeated = self.damaged = 0
        self.complete = False  # the run has made its last step

    def next(self):
        """Returns at most CHUNK further rows. An empty list means that there are no further rows yet."""
        rows = []
        while len(rows) < CHUNK:
            self.part += self.file.readline(MAX_LINE + 1)
            if len(self.part) > MAX_LINE:
                sys.exit(f"{self.path}: a line is longer than {MAX_LINE} bytes: this is not a file of metrics")
            if not self.part.endswith(b"\n"):
                own, there = os.fstat(self.file.fileno()), Path(self.path)  # there is no file if the folder was moved
                if own.st_size < self.file.tell() or there.exists() and not os.path.samestat(own, there.stat()):
                    sys.exit(f"{self.path} was replaced while it was read: start again")  # rows now have different numbers
                break
            line, self.part = self.part.strip(), b""
            self.first = self.first or line
            if line:
                rows += self.read(line)
        return rows

    def read(self, text):
        """Returns a list with the row of a line. It is empty if there is nothing to forward."""
        try:
            line = json.loads(text.decode(errors="replace"))
            kind, agent = line["kind"], line.get("agent", "")
            if kind == "note":
                self.complete = self.complete or line.get("topic") == "end"
                return []
            if kind not in ("step", "eval", "cold_start"):
                raise ValueError(kind)
            row = self.row(line, kind, agent)
        except Exception:  # any program may have written the line
            self.damaged += 1
            return []
        self.complete = False  # the run was extended
        if row["step"] <= self.newest.get((agent, kind), -math.inf):
            self.repeated += 1
            return []
        self.newest[agent, kind] = row["step"]
        self.rows += 1
        return [row]

    def row(self, line, kind, agent):
        """Names the numbers of a record: AGENT/NAME for a step, AGENT/KIND/NAME for other kinds, and AGENT/NAME/TOOL for counts by tool."""
        prefix = named(agent or "team") + ("/" if kind == "step" else f"/{kind}/")
        values = {prefix + named(name): number(v, (int, float), sys.float_info.max) for name, v in (line.get("values") or {}).items()}
        histograms = {}
        for name, counts in (line.get("counts") or {}).items():
            counts = {key: number(n) for key, n in (counts or {}).items()}
            if name not in self.by_tool:
                histograms[prefix + named(name)] = binned(counts)
                continue
            for tool, n in counts.items():
                at = f"{prefix}{name}/{named(tool)}"
                values[at] = values.get(at, 0) + n
        return {"index": self.rows, "step": number(line.get("step", 0)), "time": seconds(line.get("time", "0001-01-01T00:00:00Z")),
                "values": dict(sorted(values.items())), "histograms": {name: h for name, h in sorted(histograms.items()) if h}}


def named(part):
    """Returns a part of a name that every tracker accepts. The tools of MCP servers may have any names."""
    part = re.sub(r"[^a-zA-Z0-9_.-]", "_", part)
    return (part if part.strip(".") else "_" * (len(part) + 1))[:64]  # MLflow reads names as paths


def number(v, types=(int,), most=2**63 - 1):
    """Returns a number of a line if it has one of the types and is not too large."""
    if type(v) not in types or not abs(v) <= most:
        raise ValueError(v)
    return v


def seconds(text):
    """Returns a time of RFC 3339 in seconds since 1970, cut to microseconds."""
    whole, fraction, zone = re.fullmatch(r"([-0-9]+T[:0-9]+)(?:\.([0-9]+))?(Z|[-+][:0-9]+)", text).groups("0")
    time = datetime.fromisoformat(f"{whole}.{fraction:0<6.6}" + zone.replace("Z", "+00:00"))
    return (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) / 1e6


def binned(counts):
    """Distributes counts of integers over bins of equal width, at most 512 as in W&B. Bin i is from edges[i] to edges[i + 1]."""
    by_key = {}
    for key, n in counts.items():
        if re.fullmatch(r"[-+]?[0-9]{1,19}", key) and -(2**63) <= int(key) < 2**63:
            by_key[int(key)] = by_key.get(int(key), 0) + n
    if not by_key:
        return None
    lowest, span = min(by_key), max(by_key) - min(by_key)
    width = span // 512 + 1
    bins = [0] * (span // width + 1)
    for key, n in by_key.items():
        bins[(key - lowest) // width] += n
    return {"counts": bins, "edges": [lowest - 0.5 + i * float(width) for i in range(len(bins) + 1)]}


def typed(text):
    """Returns a value of the configuration: a number, a boolean or a text."""
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text


class WandB:
    """A run whose steps are the rows. Offline, the client does not have access to the rows that it wrote before."""

    def __init__(self, run):
        os.environ["WANDB_PROJECT"] = run["to"]
        defaults = {"RUN_ID": run["id"], "RESUME": "allow", "NAME": run["name"], "RUN_GROUP": run["name"], "DIR": run["dir"]}
        # The output and resource use of this process are not those of the run.
        defaults |= {"CONSOLE": "off", "DISABLE_GIT": "true", "DISABLE_CODE": "true", "X_DISABLE_STATS": "true"}
        for name, value in defaults.items():
            os.environ.setdefault("WANDB_" + name, value)
        import wandb

        config = {}
        for key, text in sorted(run["params"].items()):
            at, (*sections, last) = config, key.split(".")
            for section in sections:
                at = at.setdefault(section, {})
            at[last] = typed(text)
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

    def end(self, complete):  # W&B shows the run as finished until another client continues it
        self.run.finish()


class MLflow:
    """A run that is identified by its tag mgrpo.run. Its tag mgrpo.rows has the number of its rows. MLflow has no histograms."""

    def __init__(self, run):
        import mlflow
        from mlflow import entities

        self.metric, self.client = entities.Metric, mlflow.MlflowClient()
        experiment = mlflow.set_experiment(run["to"]).experiment_id
        found = self.client.search_runs([experiment], f"tags.`mgrpo.run` = '{run['id']}'", max_results=1)
        if found:
            self.client.update_run(found[0].info.run_id, status="RUNNING")
        else:
            began = round(run["began"] * 1e6) // 1000  # milliseconds
            found = [self.client.create_run(experiment, start_time=began, tags={"mgrpo.run": run["id"]}, run_name=run["name"])]
        self.id, old = found[0].info.run_id, found[0].data
        values = {key: typed(text) for key, text in run["params"].items()}
        params = {key: (v if type(v) is str else run["params"][key])[:500] for key, v in values.items()}  # old servers refuse longer ones
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

        self.event, self.proto, self.writer, self.began = event_pb2.Event, summary_pb2, RecordWriter, run["began"]
        self.folder = Path(run["to"], os.path.basename(os.path.abspath(run["dir"])))
        self.files, self.next = {}, 0

    def histogram(self, counts, edges):
        return self.proto.HistogramProto(min=edges[0], max=edges[-1], num=sum(counts), bucket_limit=edges, bucket=[0, *counts])

    def log(self, rows):
        for row in rows:
            values = {name: {"simple_value": v} for name, v in row["values"].items()}
            values |= {name: {"histo": self.histogram(**h)} for name, h in row["histograms"].items()}
            if values:  # all of one agent, whose name they begin with
                agent = next(iter(values)).partition("/")[0]
                if agent not in self.files:
                    os.makedirs(self.folder / agent, exist_ok=True)
                    self.files[agent] = self.writer(open(self.folder / agent / "events.out.tfevents.mgrpo", "wb"))
                    self.files[agent].write(self.event(wall_time=self.began, file_version="brain.Event:2").SerializeToString())
                summary = self.proto.Summary(value=[self.proto.Summary.Value(tag=name[len(agent) + 1 :], **v) for name, v in values.items()])
                self.files[agent].write(self.event(wall_time=row["time"], step=row["step"], summary=summary).SerializeToString())
        for file in self.files.values():
            file.flush()

    def end(self, complete):
        for file in self.files.values():
            file.close()


def forward(run, records):
    """Forwards rows until the run is complete, or until the end of the file after the end of the input."""
    tracker, ended, complete = None, False, False
    try:
        while (rows := records.next()) or not (ended or records.complete and not run["more"]):
            if not rows:
                ended = bool(select.select([sys.stdin], [], [], 1)[0])
                continue
            if not tracker:  # the ID is the same after a resume or a move, because the first line has the time at which the run began
                run |= {"id": hashlib.sha256(run["name"].encode() + b"\n" + records.first).hexdigest()[:16], "began": rows[0]["time"]}
                tracker = {"wandb": WandB, "mlflow": MLflow, "tensorboard": TensorBoard}[run["tracker"]](run)
                print(file=answer, flush=True)
            if rows := rows[max(0, tracker.next - rows[0]["index"]) :]:
                tracker.log(rows)
        complete = records.complete
    finally:
        if tracker:
            tracker.end(complete)


answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the client's output is for people
run = json.loads(sys.stdin.buffer.readline())
records, error = Records(run), None
try:
    forward(run, records)
except ImportError as e:
    error = (f"{sys.executable} has no package {run['tracker']} ({e}): install it with `{sys.executable} -m pip install {run['tracker']}`, "
             "or name the Python that has it with --python")
except SystemExit as e:
    error = e.code
finally:
    print(json.dumps({"rows": records.rows, "repeated": records.repeated, "damaged": records.damaged, "error": error}), file=answer, flush=True)
sys.exit(1 if error else 0)
