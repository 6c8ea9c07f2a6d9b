#!/usr/bin/env python3
"""fuzz.py SECONDS: runs every fuzz target of the repository for some seconds each, and lists those that failed at the end."""
import pathlib
import re
import subprocess
import sys


def targets():
    """Yields the package and the name of each target."""
    for file in sorted(pathlib.Path(".").glob("**/*_test.go")):
        if file.parts[0] in ("build", "runs", "models"):
            continue
        for name in re.findall(r"^func (Fuzz\w+)\(", file.read_text(encoding="utf-8"), re.M):
            yield f"./{file.parent}", name


def main():
    found, failed = list(targets()), []
    if not found:
        sys.exit("fuzz: no target found")
    for i, (package, name) in enumerate(found):
        print(f"-- {i + 1} of {len(found)}: {package} {name}", flush=True)
        command = ["go", "test", "-run", "^$", "-fuzz", f"^{name}$", "-fuzztime", f"{sys.argv[1]}s", package]
        if subprocess.run(command).returncode:
            failed.append(f"{package} {name}")
    if failed:
        sys.exit("fuzz: failed: " + ", ".join(failed))
    print(f"fuzz: {len(found)} targets, {sys.argv[1]} s each, none failed")


main()
