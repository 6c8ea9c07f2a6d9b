#!/usr/bin/env python3
"""call.py [OPTION...] PLAN|STEP...: runs tests and measurements on a machine with a GPU, the most valuable first.

PLAN is `first` (nine minutes) or `rest` (further steps, and then the steps for which `first` had no time); STEP is one step of either. Every
step has a time limit. The other steps run although one fails or hangs. call.json and call.log are written after each step, so a call that is
cut off keeps its results. A step that passed is not repeated by a later call on the same machine, unless it is named. Results go to $OUT (build/gpu-results): call.json, call.log, and JSON of the benchmarks.
Status 0: all steps passed; 1: one failed; 3: some are left.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACK = ROOT / "build" / "gpu"
TORCH = "2.11.0"

# The tests of ranks start a hundred processes, and each opens the GPU.
RANKS = "^TestRanks(Learn|LoseOne|CancelOne|LoseADevice|GoOnWithOthers)$"
LOST = "^TestLostGPU$"


class Step:
    """A command with its limit in seconds, or several that run at once. A step does not start with less than `needs` seconds left."""

    def __init__(self, name, limit, *commands, needs=None, cwd=ROOT, gpu_tests=False, check=None):
        self.name, self.limit, self.commands = name, limit, commands
        self.needs, self.cwd, self.gpu_tests, self.check = needs or min(limit, 20), cwd, gpu_tests, check


class Machine:
    """The programs, the device, and how they are run."""

    def __init__(self, options):
        self.options, self.emulated = options, options.emulated
        self.out = pathlib.Path(os.environ.get("OUT") or ROOT / "build" / "gpu-results").resolve()
        self.work = ROOT / "build" / "gpu-work"
        for folder in (self.out, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.mgrpo = str(PACK / "bin" / "mgrpo-cuda")
        self.device = "cuda:0"
        site = str(ROOT / "site")
        self.env = os.environ | {"MGRPO_REQUIRE_GPU": "1", "MGRPO_GOLDENS": str(ROOT / "testdata"), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
                                 "PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))}
        torch = self.torch()
        libraries = [PACK / "lib", torch / "lib", torch.parent / "nvidia" / "cu13" / "lib", os.environ.get("LD_LIBRARY_PATH")]
        if self.emulated:
            libraries = [self.emulated, *libraries]
            self.env |= {"MGRPO_EMULATED_ULPS": "2", "OMP_NUM_THREADS": "1"}
        self.env["LD_LIBRARY_PATH"] = os.pathsep.join(str(path) for path in libraries if path)
        self.kernels = str(next(path for path in libraries if (path / "libmgrpo_kernels_cuda.so").exists()) / "libmgrpo_kernels_cuda.so")

    def torch(self):
        """The folder of Python's torch, of the version that the programs are linked with."""
        text = self.python("import torch; print(torch.__version__, torch.cuda.is_available(), torch.__file__)")
        version, available, path = text.split(maxsplit=2)
        if version.split("+")[0] != TORCH:
            sys.exit(f"call: torch {TORCH} is needed, and python3 has {version}")
        if available != "True" and not self.emulated:
            sys.exit("call: torch sees no GPU on this machine: look at nvidia-smi")
        return pathlib.Path(path.strip()).parent

    def python(self, text):
        done = subprocess.run([sys.executable, "-c", text], env=self.env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"call: python3 cannot import torch:\n{done.stderr[-2000:]}")
        return done.stdout

    def describe(self):
        def first(*command):
            try:
                return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=30).stdout.strip().splitlines()[0]
            except (OSError, IndexError, subprocess.TimeoutExpired):
                return None

        smi = lambda field: first("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader")
        return {"device": "emulated" if self.emulated else smi("name"), "driver": smi("driver_version"), "memory": smi("memory.total"),
                "program": first(self.mgrpo, "version"), "torch": TORCH, "python": sys.version.split()[0], "kernel": os.uname().release}


# --- what is run


def plans(m):
    """The steps of both plans, in the order of their value."""
    bench = lambda suite, *flags: [m.mgrpo, "bench", suite, "--device", m.device, "--threads", str(min(os.cpu_count(), 8)), *flags]
    whole = ["--brief", "--out"] if not m.emulated else ["--quick", "--out"]
    out = lambda suite: [*whole, str(m.out / f"{suite}.json")]
    quick = [bench(suite, "--quick") for suite in ("rollout", "learner", "step")]
    first_py = [sys.executable, str(ROOT / "bench/gpu/first.py"), m.kernels, "cpu" if m.emulated else "cuda", str(m.out / "kernels.json")]
    packages = ["cuda", "bindings/kernels", "bindings/torch", "trainer/model", "trainer/engine/policy/local", "trainer/engine/learner"]
    if m.emulated:  # make test-emulated runs the others, which takes many minutes
        packages = ["cuda", "bindings/kernels"]
    first = [
        Step("kernels", 90, first_py),
        Step("doctor", 40, [m.mgrpo, "doctor", "--kernels"]),
        *([] if m.emulated else [Step("quick", 60, *quick)]),
        Step("decode", 200, bench("rollout", *out("rollout"))),
        Step("update", 150, bench("learner", *out("learner"))),
        Step("step", 60, bench("step", "--only", "tiny" if m.emulated else "qwen3-1.7b", "--no-peers", *out("step"))),
        Step("quickstart", 90, *[quickstart(m, *case) for case in (("cuda:0", "fp32"), ("cuda:0", "bf16"), ("cpu", "fp32"))], check=lambda: alike(m)),
        Step("suite", 60, *kernel_tests(4)) if not m.emulated else None,
        Step("go-tests", 100, *[go_test(m, package, skip=f"{RANKS}|{LOST}") for package in packages], gpu_tests=True),
        Step("memcheck", 60, *sanitiser("memcheck", 1), needs=25),
        Step("profile", 60, ["ncu", "--clock-control", "none", "--set", "basic", "--kernel-id", "::regex:attend|heads|glu:2", *first_py[:-1], "/dev/null", "attention_cached", "heads", "swiglu 8192 x 11008"], needs=25),
    ]
    rest = [
        Step("profile-decode", 60, *profiled(m, "decode", bench("rollout", "--only", "qwen3-1.7b", "--no-peers"), 6000, 1200)),
        Step("profile-update", 60, *profiled(m, "update", bench("learner", "--only", "qwen3-1.7b", "--no-peers"), 5000, 2600, "graph")),
        Step("racecheck", 240, *sanitiser("racecheck", 8)),
        Step("team", 200, whole_quickstart(m)) if not m.emulated else None,
        Step("ranks", 180, go_test(m, "trainer/engine/learner", run=f"{RANKS}|{LOST}"), go_test(m, "bindings/torch", run=LOST)),
        Step("kernels-alone", 90, bench("kernels", "--no-peers", *out("kernels-alone"))),
        Step("step-trl", 150, bench("step", *out("step-trl"))),
        Step("kernels-peers", 300, bench("kernels", *out("kernels-peers"))),
    ]
    return [s for s in first if s], [s for s in rest if s]


def go_test(m, package, run=None, skip=None):
    (ROOT / package).mkdir(parents=True, exist_ok=True)  # a package without testdata has no folder here
    program = [str(PACK / "test" / f"{package.replace('/', '.')}.go_test"), "-test.v", "-test.timeout", "10m"]
    return {"cwd": ROOT / package, "command": program + (["-test.run", run] if run else []) + (["-test.skip", skip] if skip else [])}


def kernel_tests(parts, tests="*/cuda*", under=()):
    """Runs tests of the CUDA kernels in several processes, for the float64 oracles take the most time."""
    command = [*under, str(PACK / "test" / "kernels_test"), "--gtest_brief=1", f"--gtest_filter={tests}"]
    return [{"command": command, "env": {"GTEST_TOTAL_SHARDS": str(parts), "GTEST_SHARD_INDEX": str(part)}} for part in range(parts)]


def sanitiser(tool, parts):
    """Runs small tests only: under the tool, tests of 70,000 rows take minutes."""
    return kernel_tests(parts, "*/cuda*:-*Beyond*:*Long*:*Many*:*Large*", ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"])


def profiled(m, name, command, skip, count, graphs="node"):
    """The time of each of `count` launches of a command, in $OUT/profile-NAME.csv, and a table of it. ncu ends the command after them.
    graphs: a replayed graph is one launch (graph) or many (node)."""
    csv = m.out / f"profile-{name}.csv"
    tool = ["ncu", "--clock-control", "none", "--metrics", "gpu__time_duration.sum", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(csv),
            "--graph-profiling", graphs, "--launch-skip", str(skip), "--launch-count", str(count), "--kill", "yes", *command]
    return [["bash", "-c", '"${@:4}"; exec "$1" "$2" "$3"', "bash", sys.executable, str(ROOT / "bench/gpu/hottest.py"), str(csv), *tool]]


def quickstart(m, device, dtype):
    """The quickstart's team, small, on a device in a precision."""
    folder = m.work / "quickstart" / f"{device.split(':')[0]}-{dtype}"
    small = (ROOT / ".ci/quickstart-small").read_text().split()
    steps = 60 if not m.emulated else 2
    sets = [f"cold_start.queries={512 if not m.emulated else 32}", f"run.dir={folder}"]
    for agent in ("planner", "researcher"):
        where = ("cpu", "fp32") if m.emulated and agent == "researcher" else (device, dtype)  # the emulator takes one thread at a time
        sets += [f"agents.{agent}.cold_start.steps={steps}", f"agents.{agent}.device={where[0]}", f"agents.{agent}.dtype={where[1]}"]
    if m.emulated:
        sets += ["run.steps=1", "task.queries_per_step=1", "grpo.rollouts=2", "grpo.minibatches=1", "grpo.epochs=1", "eval.queries=1", "eval.before=false"]
        sets += [f"agents.{agent}.cold_start.{key}=1" for agent in ("planner", "researcher") for key in ("optimizer.warmup", "batch")]
    may_learn_nothing = [str(ROOT / ".ci/allow-nothing-trained")] if m.emulated else []
    command = [*may_learn_nothing, m.mgrpo, "train", str(ROOT / "examples/quickstart/team.yaml"), *small]
    for value in sets:
        command += ["--set", value]
    return {"command": command, "removes": folder}


def whole_quickstart(m):
    """The training of `make quickstart`, with both agents on the GPU."""
    folder = m.work / "team"
    places = [word for agent in ("planner", "researcher") for word in ("--set", f"agents.{agent}.device={m.device}")]
    return {"command": [m.mgrpo, "train", str(ROOT / "examples/quickstart/team.yaml"), "--set", f"run.dir={folder}", *places], "removes": folder}


def alike(m):
    """Returns how the teams differ, [] if they learned alike. It compares losses of the cold start, on the same demonstrations from the same weights, and the distance of
    samplers from their trainers in nats. It does not compare rollouts, because different rounding samples another token."""
    folder = m.work / "quickstart"
    cpu = learned(folder / "cpu-fp32")
    faults = []
    for name, most, far in (("cuda-fp32", 0.01, 0.001), ("cuda-bf16", 0.05, 0.03)):
        gpu = learned(folder / name)
        if not gpu or gpu.keys() != cpu.keys():
            faults.append(f"{name}: a run lacks records of an agent")
        for agent in gpu.keys() & cpu.keys():
            (loss, gap), (want, _) = gpu[agent], cpu[agent]
            print(f"{name} {agent}: loss of the cold start {loss:.6f}, on the CPU {want:.6f}; sampler and trainer {gap:.2e} nats apart")
            if not abs(loss - want) <= most * want:
                faults.append(f"{name} {agent}: the losses are more than {most:.0%} apart")
            if not gap <= far:
                faults.append(f"{name} {agent}: sampler and trainer are {gap} nats apart")
    return faults


def learned(run):
    """Of each agent with a cold start its loss, and the largest gap of its steps."""
    loss, gap = {}, {}
    path = run / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        if row["kind"] == "cold_start":
            loss[row["agent"]] = row["values"]["loss"]
        elif row["kind"] == "step" and "gap_mean" in row["values"]:  # a step may have no trajectory of an agent
            gap[row["agent"]] = max(gap.get(row["agent"], 0), row["values"]["gap_mean"])
    return {agent: (loss[agent], gap.get(agent, 0)) for agent in loss}


# --- how it is run


class Call:
    def __init__(self, machine, options, named):
        self.m, self.named = machine, named
        begun, self.end, self.most = options.begun, options.begun + options.seconds, options.most
        self.log = machine.out / "call.log"
        self.record = {"begun": time.strftime("%F %T", time.gmtime(begun)), **machine.describe(), "steps": []}
        self.state = machine.work / "passed.json"
        self.passed = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.log.write_text("")

    def left(self):
        return self.end - time.time()

    def write(self):
        part = self.m.out / "call.json.part"
        part.write_text(json.dumps(self.record, indent=1))
        part.replace(self.m.out / "call.json")

    def run(self, step):
        start, row = time.time(), {"step": step.name}
        if step.name in self.passed and step.name not in self.named and not self.record.get("defined"):
            row |= self.passed[step.name] | {"before": True}
        elif self.left() < step.needs:
            row["status"] = "left"
        else:
            limit = 5 * step.limit if self.m.emulated else step.limit
            row |= self.outcome(step, min(limit, self.most, self.left()))
            row["seconds"] = round(time.time() - start, 1)
        self.record["steps"].append(row)
        self.write()
        print(f"{step.name:16} {row['status']:10} {row.get('seconds', 0):6.1f} s  {row.get('why', '')}"
              f"{str(row['gpu_tests']) + ' tests on the GPU' if 'gpu_tests' in row else ''}", flush=True)
        if row["status"] == "passed" and not self.record.get("defined"):
            self.passed[step.name] = row
            self.state.write_text(json.dumps(self.passed))

    def outcome(self, step, limit):
        children = [Child(self.m, step, command, number) for number, command in enumerate(step.commands)]
        deadline = time.time() + limit
        for child in children:
            child.wait(max(0.0, deadline - time.time()))
        with self.log.open("a") as log:
            log.write(f"== {step.name}\n")
            for child in children:
                log.write(f"-- {' '.join(child.arguments)}: {child.status}\n{child.output()}\n")
        row = {"status": "passed", "commands": [{"command": child.name, "status": child.status} for child in children]}
        for status in ("timed_out", "absent", "failed"):
            if any(child.status == status for child in children):
                row["status"] = status
        if step.gpu_tests:
            row["gpu_tests"] = sum(child.gpu_tests() for child in children)
            if not row["gpu_tests"]:
                row |= {"status": "failed", "why": "no test ran on the GPU"}
        if step.check and row["status"] == "passed" and (faults := step.check()):
            row |= {"status": "failed", "why": "; ".join(faults)}
        for child in children:
            child.show(row["status"])
        return row


class Child:
    """A command of a step, in a process group of its own."""

    def __init__(self, machine, step, command, number):
        options = command if isinstance(command, dict) else {"command": command}
        self.arguments = options["command"]
        self.name = " ".join(pathlib.Path(word).name if "/" in word else word for word in self.arguments[:3])
        if folder := options.get("removes"):
            subprocess.run(["rm", "-rf", str(folder)], check=True)
        self.path = machine.work / f"{step.name}-{number}.log"
        self.file = self.path.open("w+")
        self.start = time.time()
        try:
            self.process = subprocess.Popen(self.arguments, env=machine.env | options.get("env", {}), cwd=options.get("cwd", step.cwd), stdout=self.file, stderr=subprocess.STDOUT,
                                            stdin=subprocess.DEVNULL, start_new_session=True)
            self.status = None
        except OSError as e:
            tool = not pathlib.Path(self.arguments[0]).is_absolute() and not shutil.which(self.arguments[0])
            self.process, self.status = None, "absent" if tool else "failed"
            self.file.write(str(e))

    def wait(self, seconds):
        if self.process is None:
            return
        try:
            self.status = "passed" if self.process.wait(seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            self.status = "timed_out"
            self.end()

    def end(self):
        """Asks first, so that a benchmark keeps the rows it has."""
        for sign, patience in ((signal.SIGINT, 4), (signal.SIGKILL, 4)):
            try:
                os.killpg(self.process.pid, sign)
                self.process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass

    def output(self, most=2 << 20):
        self.file.flush()
        text = self.path.read_text(errors="replace")
        return text if len(text) <= most else text[:most // 4] + "\n[...]\n" + text[-3 * most // 4:]

    def gpu_tests(self):
        return len(re.findall(r"--- PASS: \S*/(?:cuda|GPU)", self.output()))

    def show(self, status):
        """Prints tables of a command that passed, or the end of the output of one that did not."""
        lines = self.output().splitlines()
        if self.status == "passed":
            lines = [line for line in lines if re.search(r"tokens/s|floor|error .* us|cases,|tests ran on|captured|apart|launches|held-out accuracy", line)]
        print("".join(f"  | {line[:200]}\n" for line in lines[-60:]), end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540, help="of the whole call: steps that do not fit are left (540)")
    parser.add_argument("--most", type=float, default=3600, help="of a step, where its own limit is longer")
    parser.add_argument("--begun", type=float, default=time.time(), help="when the call began, in seconds since 1970")
    parser.add_argument("--emulated", type=pathlib.Path, help="a folder with the emulated driver and libraries, in place of a GPU: small shapes")
    parser.add_argument("--define", action="append", metavar="NAME=VALUE", help="first build the kernels again, with another constant (rebuild.sh)")
    parser.add_argument("names", nargs="+", metavar="first|rest|STEP")
    options = parser.parse_args()
    machine = Machine(options)
    first, rest = plans(machine)
    steps = {step.name: step for step in (*first, *rest)}
    chosen, named = [], []
    for name in options.names:
        if name not in ("first", "rest", *steps):
            sys.exit(f"call: no step {name}; there are {', '.join(steps)}")
        named += [name] if name in steps else []
        chosen += [steps[name]] if name in steps else first if name == "first" else [*rest, *first]
    call = Call(machine, options, named)
    call.write()
    if options.define:
        call.record["defined"] = options.define
        call.run(Step("rebuild", 240, [str(ROOT / "bench/gpu/rebuild.sh"), *[f"-D{pair}" for pair in options.define]]))
        if call.record["steps"][-1]["status"] != "passed":
            sys.exit("call: the kernels were not built again: nothing is measured")
    for step in dict.fromkeys(chosen):
        call.run(step)
    print("\n" + "\n".join(f"{row['step']:16} {row['status']:10} {row.get('why', '')}" for row in call.record["steps"]))
    status = {row["status"] for row in call.record["steps"]}
    sys.exit(1 if status - {"passed", "left", "absent"} else 3 if "left" in status else 0)


if __name__ == "__main__":
    main()
