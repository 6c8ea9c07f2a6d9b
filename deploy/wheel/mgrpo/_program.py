"""Starts and stops the program."""
from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from importlib import metadata
from typing import IO, Mapping


def program() -> pathlib.Path:
    """Returns the path of the program: MGRPO if that is set, else the one in this package."""
    named = os.environ.get("MGRPO")
    path = pathlib.Path(named) if named else pathlib.Path(__file__).parent / "bin" / "mgrpo"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: install the wheel, or let MGRPO name the program")
    return path


def other_torch() -> str | None:
    """Returns a message if the environment's torch is not the version that the program was built with, else None."""
    try:
        wanted = next((r for r in metadata.requires("mgrpo") or [] if r.startswith("torch==")), None)
    except metadata.PackageNotFoundError:
        return None  # the module is used without its package
    if wanted is None:
        return None
    try:
        found = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        return f"mgrpo needs LibTorch, and this environment has no torch: pip install {wanted}"
    if found == wanted.removeprefix("torch=="):
        return None
    return f"mgrpo was built with {wanted}, and this environment has torch {found}: pip install {wanted}, or build a wheel with that version"


def main() -> None:
    """Becomes the program, with this process's arguments."""
    if "MGRPO" not in os.environ and (message := other_torch()):
        sys.exit(message)
    os.execv(program(), ["mgrpo", *sys.argv[1:]])


class Process:
    """A command that runs in parallel with this program. As a context manager it is stopped at the end."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen

    def running(self) -> bool:
        """Reports whether the command has not ended yet."""
        return self.popen.poll() is None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit status: 0 done, 75 continue with --resume, anything else a failure.

        Raises subprocess.TimeoutExpired after timeout seconds.
        """
        return self.popen.wait(timeout)

    def stop(self, timeout: float | None = None) -> int:
        """Asks for a stop and returns the exit status. A training run first finishes its step and writes a checkpoint.

        After timeout seconds the command is killed; the newest complete checkpoint stays.
        """
        if self.running():
            self.popen.send_signal(signal.SIGINT)
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(command: str, *arguments: str | os.PathLike[str], settings: Mapping[str, object] | None = None,
          output: IO[bytes] | int | None = None, environment: Mapping[str, str] | None = None) -> Process:
    """Starts `mgrpo COMMAND ARGUMENTS...` and returns at once, for example start("train", "team.yaml", settings={"run.steps": 3}).

    settings become --set KEY=VALUE; True and False are written as YAML writes them. output takes what the command prints, standard
    output and standard error; without it they go where this process's go.
    """
    line: list[str] = [str(program()), command, *map(os.fspath, arguments)]
    for key, value in (settings or {}).items():
        line += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return Process(subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT if output is not None else None,
                                    env={**os.environ, **(environment or {})}))
