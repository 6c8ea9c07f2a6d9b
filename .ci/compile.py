#!/usr/bin/env python3
"""compile.py COMMAND...: runs commands that compile at the same time, and prints their progress every 10 seconds: "compiling N of M".

For `ninja`, N and M come from its [N/M]. For `go build -v`, N is the number of packages compiled so far, and M the number of packages
that the program needs. If a command fails, the others are ended and its output is printed.
"""
import re
import subprocess
import sys
import threading
import time

EVERY = 10
START = time.monotonic()


class Command:
    def __init__(self, text):
        self.text, self.done, self.total, self.lines = text, 0, 0, []
        self.process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        if packages := re.findall(r" (\./\S+|github\.com/\S+)", text):
            threading.Thread(target=self.count, args=(packages,), daemon=True).start()

    def count(self, packages):
        self.total = len(subprocess.run(["go", "list", "-deps", *packages], capture_output=True, text=True, check=False).stdout.split())

    def read(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if m := re.match(r"\[(\d+)/(\d+)\] ", line):
                self.done, self.total = int(m[1]), int(m[2])
            elif re.fullmatch(r"[\w.~/-]+", line):  # a package
                self.done += 1
            elif line and "no work to do" not in line:
                self.lines.append(line)

    def progress(self):
        if self.process.poll() is not None or not self.done and not self.total:
            return ""
        kind = "C++ files" if self.text.startswith("ninja") else "Go packages"
        return f"{self.done} of {self.total or '?'} {kind}"


def main():
    commands = [Command(text) for text in sys.argv[1:]]
    said = time.monotonic()
    while any(c.process.poll() is None for c in commands) and not any(c.process.poll() for c in commands):
        time.sleep(0.1)
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            seconds = int(said - START)
            parts = [p for p in (c.progress() for c in commands) if p]
            print(f"build: compiling {', '.join(parts) or 'Go packages'} ({seconds // 60}:{seconds % 60:02d})", flush=True)
    for c in commands:
        if c.process.poll() is None:
            c.process.terminate()
    for c in commands:
        status = c.process.wait()
        c.reader.join()
        if c.lines:
            print(*c.lines, sep="\n", flush=True)
        if status > 0:
            print(f"build: failed: {c.text}", file=sys.stderr)
    return 1 if any(c.process.returncode for c in commands) else 0


if __name__ == "__main__":
    sys.exit(main())
