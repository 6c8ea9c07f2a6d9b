#!/usr/bin/env python3
"""tests.py [--kernels DIR] [--shim DIR] [--go PACKAGES] [--race PACKAGES]: runs suites of tests, all suites even if one fails.

DIR has programs of GoogleTest, and PACKAGES are arguments of `go test`. It prints each result at once, and its state after 15
seconds without a line. The whole output of each suite goes to build/tests/. The end lists the failures; the last line is
"N packages ok, M failed: NAME (TEST, ...), ...", and the kernels on one instruction set count as a package. The status is 1 if a test
failed.
"""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time

QUIET = 15  # seconds without a line, after which the state is printed
SHOWN = 60  # number of lines of a failed test's output
LIMIT = "3h"  # limit for one package, for tests that hang
START = time.monotonic()
LOGS = pathlib.Path("build/tests")


def clock():
    seconds = int(time.monotonic() - START)
    return f"{seconds // 60}:{seconds % 60:02d}"


class Console:
    """Prints lines, and the state of the suites after some time without a line."""

    def __init__(self):
        self.lock, self.last, self.states = threading.Lock(), time.monotonic(), {}
        threading.Thread(target=self.tick, daemon=True).start()

    def say(self, *lines):
        with self.lock:
            print(*lines, sep="\n", flush=True)
            self.last = time.monotonic()

    def state(self, suite, text):
        with self.lock:
            self.states[suite] = text
            if text is None:
                del self.states[suite]

    def tick(self):
        while True:
            time.sleep(1)
            with self.lock:
                if self.states and time.monotonic() - self.last >= QUIET:
                    print(f"-- {clock()} {'; '.join(self.states.values())}", flush=True)
                    self.last = time.monotonic()


class Results:
    def __init__(self):
        self.ok, self.failed = [], {}

    def add(self, name, good, tests=()):
        if good:
            self.ok.append(name)
        else:
            self.failed[name] = list(tests)

    def end(self):
        for name, tests in self.failed.items():
            for test in tests or ["no single test: see above"]:
                print(f"failed: {name}: {test}")
        text = f"{len(self.ok)} packages ok, {len(self.failed)} failed"
        if self.failed:
            text += ": " + ", ".join(name + (f" ({', '.join(tests[:5])}{', ...' if len(tests) > 5 else ''})" if tests else "") for name, tests in self.failed.items())
        print(text, flush=True)
        return 1 if self.failed else 0


def kernels(folder):
    """Returns the programs of the kernels: name, command and additional environment. If the CPU lacks an instruction set, its run repeats a
    lower one."""
    yield "kernels-emulated", [f"{folder}/kernels_emulated_test", "--gtest_filter=*emulated:Emulator*:Launches*"], {}
    for isa in ("portable", "avx2", "avx512", "amx"):
        yield f"kernels-{isa}", [f"{folder}/kernels_test"], {"MGRPO_CPU_ISA": isa}


def google_test(name, command, environment, console, results):
    """Runs one program of GoogleTest."""
    start, total, done, failed, tail = time.monotonic(), "?", 0, [], collections.deque(maxlen=SHOWN)
    with open(LOGS / f"{name}.log", "w", encoding="utf-8") as log:
        p = subprocess.Popen(command, env={**os.environ, "OMP_WAIT_POLICY": "passive", **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        for line in p.stdout:
            log.write(line)
            tail.append(line.rstrip())
            if m := re.match(r"\[==========\] Running (\d+) test", line):
                total = m[1]
            elif re.match(r"\[       OK \]|\[  SKIPPED \] .* \(\d+ ms\)", line):  # the list at the end has no times
                done += 1
            elif line.startswith("[ RUN      ]"):
                tail.clear()
            elif m := re.match(r"\[  FAILED  \] ([^ ,]+)(, where .*)? \(\d+ ms\)", line):
                done += 1
                failed.append(m[1])
                console.say(f"--- FAIL: {m[1]} ({name})", *tail)
            console.state(name, f"{name}: test {done} of {total}")
        status = p.wait()
    console.state(name, None)
    if status and not failed:
        console.say(f"{name} ended with status {status}", *tail)
    console.say(f"{'FAIL' if status else 'ok  '}\t{name}\t{time.monotonic() - start:.1f}s\t{done} of {total} tests run")
    results.add(name, status == 0, failed)


def several(suites, console, results):
    """Runs programs of GoogleTest, one for each core at a time, because most of their tests use one core."""
    left = queue.SimpleQueue()
    for s in suites:
        left.put(s)

    def work():
        while True:
            try:
                s = left.get_nowait()
            except queue.Empty:
                return
            google_test(*s, console, results)

    threads = [threading.Thread(target=work) for _ in range(os.cpu_count())]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def short(package):
    return re.sub(r"^github\.com/[^/]+/[^/]+/", "", package)


class GoTest:
    """Reads the output of go test -json."""

    def __init__(self, label, total, console, results):
        self.label, self.total, self.console, self.results = label, total, console, results
        self.output, self.failed = collections.defaultdict(list), collections.defaultdict(list)
        self.running, self.done, self.builds = {}, 0, collections.defaultdict(list)

    def state(self):
        if not self.running:
            return f"{self.label}: package {self.done} of {self.total}, compiling"
        names = sorted(self.running, key=self.running.get)
        longest = int(time.monotonic() - self.running[names[0]])
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"{self.label}: package {self.done} of {self.total}, running {', '.join(map(short, names[:3]))}{others} (for {longest} s)"

    def event(self, e):
        action, package, test = e["Action"], e.get("Package", ""), e.get("Test")
        if action == "build-output":
            self.builds[e["ImportPath"]].append(e["Output"].rstrip("\n"))
        elif action == "start":
            self.running[package] = time.monotonic()
        elif action == "output":
            lines = self.output[package, test]
            lines.append(e["Output"].rstrip("\n"))
            del lines[:-10 * SHOWN]
        elif test is not None:
            if action == "fail":
                self.failed[package].append(test)
            elif action in ("pass", "skip"):
                self.output.pop((package, test), None)
        elif action in ("pass", "fail", "skip"):
            self.end(package, action, e)
        self.console.state(self.label, self.state())

    def end(self, package, action, e):
        self.running.pop(package, None)
        self.done += 1
        own = self.output.pop((package, None), [])
        name = short(package) + (" (race)" if self.label == "go test -race" else "")
        if action != "fail":
            self.console.say(*[line for line in own if re.match(r"(ok|\?) ", line)] or [f"ok  \t{package}"])
            if action == "pass":
                self.results.add(name, True)
            return
        tests = self.failed[package]
        lines = []
        for test in [t for t in tests if not any(other.startswith(t + "/") for other in tests)] or [None]:
            lines += (own if test is None else self.output.pop((package, test), []))[-SHOWN:]
        for build in self.builds.values() if e.get("FailedBuild") else ():
            lines += build[:SHOWN]
        # A panic or a hang is in the package's own output, or in the output of the test that was running.
        if not tests:
            for key in [k for k in self.output if k[0] == package]:
                lines += self.output.pop(key)[-SHOWN:]
        self.console.say(*lines, f"FAIL\t{package}\t{e.get('Elapsed', 0):.1f}s")
        self.results.add(name, False, [t for t in tests if "/" not in t] or (["build"] if e.get("FailedBuild") else []))


def libraries():
    """Returns a hash of the libraries that Go packages load. `go test` alone repeats an old result if only they changed."""
    h = hashlib.sha256()
    for file in sorted(pathlib.Path("build/lib").glob("*.so")):
        h.update(file.read_bytes())
    return h.hexdigest()


def go_test(label, packages, flags, console, results):
    listed = subprocess.run(["go", "list", *packages], capture_output=True, text=True, check=False)
    run = GoTest(label, len(listed.stdout.split()), console, results)
    console.state(label, run.state())
    with open(LOGS / f"{re.sub('[^a-z]+', '-', label)}.log", "w", encoding="utf-8") as log:
        # Several packages' tests run at once, and OpenMP threads that wait for a core cost more than they contribute.
        p = subprocess.Popen(["go", "test", "-json", "-timeout", LIMIT, *flags, *packages], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        before = len(results.failed)
        for line in p.stdout:
            log.write(line)
            try:
                event = json.loads(line)
            except ValueError:
                console.say(line.rstrip("\n"))
                continue
            run.event(event)
        status = p.wait()
    console.state(label, None)
    if status and len(results.failed) == before:
        results.add(label, False, [f"status {status}"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kernels", metavar="DIR")
    p.add_argument("--shim", metavar="DIR")
    p.add_argument("--go", nargs="+", metavar="PACKAGE")
    p.add_argument("--race", nargs="+", metavar="PACKAGE")
    o = p.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    console, results = Console(), Results()
    if o.kernels:
        several(kernels(o.kernels), console, results)
    if o.shim:
        google_test("shim", [f"{o.shim}/shim_test"], {}, console, results)
    tested, now = LOGS / "libraries", libraries()
    fresh = [] if tested.exists() and tested.read_text(encoding="utf-8") == now else ["-count=1"]
    if o.go:
        go_test("go test", o.go, fresh, console, results)
    if o.race:
        go_test("go test -race", o.race, ["-race", "-vet=off", *fresh], console, results)
    if o.go and o.race and not results.failed:
        tested.write_text(now, encoding="utf-8")
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
