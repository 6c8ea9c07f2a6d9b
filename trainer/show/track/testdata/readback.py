"""Prints the contents of a tracker as JSON: {id, config, points: [[name, step, value]...]}.

  readback.py wandb FOLDER             an offline run folder
  readback.py mlflow URI EXPERIMENT    the only run of an experiment
  readback.py tensorboard FOLDER       a folder of agents' folders; the value of a histogram is the list of its limits and counts
"""

import json
import struct
import sys
from pathlib import Path


def records(data):
    """Yields the records of a log in LevelDB's format; W&B's client writes a header of 7 bytes before it."""
    at, parts = 7, []
    while at < len(data):
        if 32768 - at % 32768 < 7:  # the rest of the block is too small
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield b"".join(parts)
            parts = []


def wandb(folder):
    from wandb.proto import wandb_internal_pb2

    [path] = Path(folder).glob("run-*.wandb")
    out = {"config": {}, "points": [], "rows": []}
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            out["id"] = record.run.run_id
            for item in record.run.config.update:
                out["config"][item.key] = json.loads(item.value_json)
        if record.HasField("history"):
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            out["rows"].append(row)
            for name, value in row.items():
                if not name.startswith("_") and name != "step":
                    out["points"].append([name, row["step"], value])
    return out


def mlflow(uri, experiment):
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    [run] = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    points = [[m.key, m.step, m.value] for key in run.data.metrics for m in client.get_metric_history(run.info.run_id, key)]
    return {"id": run.data.tags["mgrpo.run"], "config": run.data.params, "points": points, "status": run.info.status}


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = []
    for agent in sorted(Path(folder).iterdir()):
        events = EventAccumulator(str(agent), {"scalars": 0, "histograms": 0}).Reload()  # 0: keeps all
        points += [[f"{agent.name}/{tag}", e.step, e.value] for tag in events.Tags()["scalars"] for e in events.Scalars(tag)]
        points += [[f"{agent.name}/{tag}", e.step, [h.bucket_limit, h.bucket]] for tag in events.Tags()["histograms"]
                   for e in events.Histograms(tag) for h in [e.histogram_value]]
    return {"points": points}


json.dump({"wandb": wandb, "mlflow": mlflow, "tensorboard": tensorboard}[sys.argv[1]](*sys.argv[2:]), sys.stdout)
