"""Reads what a run wrote into its folder."""
from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Iterator


class Run:
    """The folder of a run. It may be read while the run continues: an incomplete line is left out."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        if not (self.folder / "config.yaml").is_file():
            raise FileNotFoundError(f"{self.folder} has no config.yaml: it is not the folder of a run")

    def metrics(self, kind: str | None = None, agent: str | None = None) -> Iterator[dict[str, Any]]:
        """Yields the records of metrics.jsonl, of one kind ("step", "eval", ...) and one agent if they are given.

        A run that went back repeats steps. Of these only the last records are yielded. docs/metrics.md names the values.
        """
        records = list(_lines(self.folder / "metrics.jsonl"))
        valid: dict[str, list[int]] = {}  # indices of each agent's records, in the order of their places
        repeated: set[int] = set()
        for i, record in enumerate(records):
            if "step" not in record:  # a note
                continue
            own = valid.setdefault(record["agent"], [])
            while own and _place(records[own[-1]]) >= _place(record):
                repeated.add(own.pop())
            own.append(i)
        for i, record in enumerate(records):
            if i not in repeated and (kind is None or record.get("kind") == kind) and (agent is None or record.get("agent") == agent):
                yield record

    def phases(self) -> list[str]:
        """Returns the phases that have trajectories: step-N are rollouts of version N to train on, eval-N to evaluate."""
        folder = self.folder / "trajectories"
        found = [p.name for p in folder.iterdir() if p.is_dir()] if folder.is_dir() else []
        return sorted(found, key=lambda name: (name.split("-")[0], int(name.rsplit("-", 1)[-1])))

    def trajectories(self, phase: str, agent: str) -> Iterator[dict[str, Any]]:
        """Yields an agent's trajectories of a phase: texts, tokens, mask, log-probs, reward, weight and advantage."""
        file = self.folder / "trajectories" / phase / f"{agent}.jsonl"
        if not file.is_file():
            raise FileNotFoundError(f"{file} is not there; phases of this run: {', '.join(self.phases()) or 'none'}")
        return _lines(file)

    def checkpoints(self) -> list[pathlib.Path]:
        """Returns the folders of the run's checkpoints, the oldest first."""
        return sorted((self.folder / "checkpoints").glob("step-*"))


def _place(record: dict[str, Any]) -> int:
    """Returns a record's place in its agent's order: an evaluation follows the step of its number."""
    return {"step": 2 * record["step"] - 1, "eval": 2 * record["step"]}.get(record["kind"], -1)


def _lines(file: pathlib.Path) -> Iterator[dict[str, Any]]:
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                try:
                    yield json.loads(line)
                except ValueError:  # a crash has cut it
                    pass
