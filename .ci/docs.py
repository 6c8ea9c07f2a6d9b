#!/usr/bin/env python3
"""docs.py FILE...: runs the commands of Markdown files, in order, in the current folder.

Every ```sh block is run by bash -e, one shell a block. A comment right before a block changes that:
  <!-- ci: small: WORDS -->       append these to its last command to make it short; it passes even if nothing is learned
  <!-- ci: run: COMMANDS -->      run these instead, which may take several lines: the same at a small size
  <!-- ci: dry-run: REASON -->    needs a GPU, a cluster or a key: check its syntax and the flags it gives mgrpo
  <!-- ci: skip: REASON -->       do nothing
The first command that fails ends the run.
"""
import re
import subprocess
import sys
import time

BLOCK = re.compile(r"(?:^<!-- ci: (?P<mode>small|run|dry-run|skip): (?P<text>(?:(?!-->).)*?) -->\n+)?^```sh\n(?P<block>.*?)^```$", re.S | re.M)
SECONDS = 3600  # limit for a command that hangs


def run(commands, *runner):
    return subprocess.run([*runner, "bash", "-euo", "pipefail", "-c", commands], timeout=SECONDS, stdin=subprocess.DEVNULL).returncode == 0


def small(commands):
    return run(commands, ".ci/allow-nothing-trained")


def dry_run(commands):
    """Reports whether the commands are valid shell and mgrpo has every command and flag they use."""
    if subprocess.run(["bash", "-n", "-c", commands]).returncode:
        return False
    for line in commands.replace("\\\n", " ").splitlines():
        words = re.split(r"\s+#", line)[0].split()
        at = next((i for i, w in enumerate(words) if w.split("/")[-1] == "mgrpo"), None)
        if at is None or at + 1 == len(words):
            continue
        command = words[at + 1]
        known = subprocess.run(["bin/mgrpo", command, "--help"], capture_output=True, text=True)
        flags = {w.split("=")[0] for w in words[at + 2:] if w.startswith("--")}
        missing = [f for f in flags if not re.search(rf"{f}\b", known.stdout)]
        if known.returncode or missing:
            print(f"mgrpo {command}: {known.stderr.strip() or 'no flag ' + ', '.join(missing)}", file=sys.stderr)
            return False
    return True


def main():
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        for m in BLOCK.finditer(text):
            where = f"{name}:{text.count(chr(10), 0, m.start('block'))}"
            mode, commands = m["mode"], m["block"]
            if mode == "skip":
                print(f"-- {where}: skipped: {m['text']}", flush=True)
                continue
            if mode == "run":
                commands = m["text"]
            if mode == "small":
                commands = f"{commands.rstrip()} {m['text']}"
            print(f"-- {where}{': dry run: ' + m['text'] if mode == 'dry-run' else ''}\n{commands.strip()}", flush=True)
            start = time.monotonic()
            if not {"dry-run": dry_run, "small": small}.get(mode, run)(commands):
                sys.exit(f"{where}: failed")
            print(f"-- {time.monotonic() - start:.0f} s", flush=True)


main()
