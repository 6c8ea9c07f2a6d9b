"""test.py: run by test.sh in an environment that has the wheel: a small quickstart, read by the module, and a reward served to it."""
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import mgrpo

SMALL = dict(setting.removeprefix("--set ").split("=", 1) for setting in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").split("\n") if setting)


def quickstart(folder):
    team = folder / "q" / "team.yaml"
    with mgrpo.start("init", team, "--template", "quickstart") as process:
        assert process.wait(60) == 0
    with open(folder / "log", "wb") as log:
        with mgrpo.start("train", team, settings={**SMALL, "run.dir": folder / "run"}, output=log) as process:
            status = process.wait(600)
    assert status == 0, (folder / "log").read_text(encoding="utf-8")
    run = mgrpo.Run(folder / "run")
    steps = list(run.metrics("step", agent="planner"))
    assert steps and all("reward_mean" in record["values"] for record in steps), steps
    told = [t for phase in run.phases() if phase.startswith("step-") for t in run.trajectories(phase, "planner")]
    assert told and all(len(t["tokens"]) > 0 for t in told)
    assert run.checkpoints()
    print(f"test.py: {len(steps)} steps, {len(told)} trajectories, {len(run.checkpoints())} checkpoints")


def went_back(folder):
    run = folder / "back"
    run.mkdir()
    (run / "config.yaml").touch()
    records = [("eval", 0), ("step", 1), ("eval", 1), ("step", 2), ("step", 3), ("step", 2), ("eval", 2)]
    lines = [json.dumps({"kind": kind, "step": step, "agent": "a", "n": n}) for n, (kind, step) in enumerate(records)]
    lines.insert(4, '{"kind": "step", "st')  # a crash
    lines.insert(2, json.dumps({"kind": "note", "agent": "a", "n": 99}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"kind": "ev', encoding="utf-8")
    got = [(r["kind"], r["step"], r["n"]) for r in mgrpo.Run(run).metrics() if r["kind"] != "note"]
    assert [r["n"] for r in mgrpo.Run(run).metrics("note")] == [99]
    assert got == [("eval", 0, 0), ("step", 1, 1), ("eval", 1, 2), ("step", 2, 5), ("eval", 2, 6)], got


def stopped(folder):
    settings = {**SMALL, "run.dir": folder / "stopped", "run.steps": 100000}
    with open(folder / "log", "wb") as log:
        with mgrpo.start("train", folder / "q" / "team.yaml", settings=settings, output=log) as process:
            while process.running() and not list((folder / "stopped").glob("checkpoints/step-0*")):
                time.sleep(0.1)
            assert process.stop(600) == 75, (folder / "log").read_text(encoding="utf-8")


def rewards():
    @mgrpo.reward
    def score(case):
        print("not for mgrpo")
        return {"right": 1, "nan": float("nan")}[case["answer"]]

    replies = io.StringIO()
    score.serve(io.StringIO("".join(json.dumps({"id": i, "answer": a}) + "\n" for i, a in enumerate(["right", "nan", "other"]))), replies)
    got = [json.loads(line) for line in replies.getvalue().splitlines()]
    assert got == [{"id": 0, "score": 1.0}, {"id": 1, "error": "the score is nan"}, {"id": 2, "error": "KeyError: 'other'"}], got


def other_torch(folder):
    # A package torch of another version, found before the real one, as after pip install -U torch.
    (folder / "torch-2.99.0.dist-info").mkdir()
    (folder / "torch-2.99.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.99.0\n", encoding="utf-8")
    command = [sys.executable, "-c", "import mgrpo; mgrpo.main()", "version"]
    other = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(folder)})
    assert other.returncode == 1 and "mgrpo was built with torch==" in other.stderr and "has torch 2.99.0" in other.stderr, other
    same = subprocess.run(command, capture_output=True, text=True)
    assert same.returncode == 0 and "LibTorch" in same.stdout, same


with tempfile.TemporaryDirectory() as scratch:
    rewards()
    went_back(pathlib.Path(scratch))
    other_torch(pathlib.Path(scratch))
    quickstart(pathlib.Path(scratch))
    stopped(pathlib.Path(scratch))
version = subprocess.run(["mgrpo", "version"], capture_output=True, text=True, check=True).stdout
print(version.splitlines()[0])
