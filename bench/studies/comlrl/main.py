"""Trains the same team with mgrpo and CoMLRL, from the same weights and for as many samples, and compares the accuracies.

    make bench-peers && python3 bench/studies/comlrl/main.py [--seeds N] [--rates R...] [--new-tokens N] [--out FILE]

For each seed it makes two small models (models.py). mgrpo trains them as a run whose rollouts play.py plays. CoMLRL trains them with its
MAGRPOTrainer. Both are measured on the same held-out questions with transformers. README.md describes the result.
"""
import argparse
import concurrent.futures
import importlib.metadata
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "build/peers"))

import torch
import transformers

import models
import play
import task

RATES = [3e-4, 1e-3, 3e-3]  # learning rates, tried with each program
STEPS, QUERIES, ROLLOUTS = 40, 16, 8
TOKEN = "comlrl-" + os.urandom(16).hex()
THREADS = 1
# 0.975 quantiles of Student's t distribution for 1 to 9 degrees of freedom.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def mgrpo(folder, seed, rate, new_tokens):
    """Trains with mgrpo. Returns the folders of the models, by agent."""
    url, team = f"http://127.0.0.1:{(port := free_port())}", folder / "team.yaml"
    team.write_text((ROOT / "bench/studies/comlrl/team.yaml").read_text())
    run = folder / f"mgrpo-{rate}"
    settings = {"run.dir": run, "run.seed": seed, "run.steps": STEPS, "run.threads": THREADS, "gateway.listen": f"127.0.0.1:{port}",
                "task.queries_per_step": QUERIES, "grpo.rollouts": ROLLOUTS}
    for agent in task.AGENTS:
        settings |= {f"agents.{agent}.optimizer.lr": rate, f"agents.{agent}.limits.max_new_tokens": new_tokens}
    command = [ROOT / "bin/mgrpo", "train", team, *(f"--set={k}={v}" for k, v in settings.items())]
    with open(folder / f"mgrpo-{rate}.log", "w") as log, concurrent.futures.ThreadPoolExecutor(ROLLOUTS) as players:
        training = subprocess.Popen(command, env=os.environ | {"MGRPO_PROGRAMS": TOKEN}, stdout=log, stderr=log)
        playing = [players.submit(play.play, url, TOKEN, training) for _ in range(ROLLOUTS)]
        status = training.wait()
        for p in playing:
            p.result()
    if status:
        raise SystemExit(f"mgrpo train ended with status {status}:\n{pathlib.Path(log.name).read_text()}")
    return {agent: run / f"checkpoints/step-{STEPS:06d}" / agent for agent in task.AGENTS}


def comlrl(folder, seed, rate, new_tokens):
    """Trains with CoMLRL. Returns the folders of the models, by agent."""
    from comlrl.trainers.reinforce.magrpo import MAGRPOConfig, MAGRPOTrainer
    transformers.set_seed(seed)
    questions = [json.loads(line)["question"] for line in (folder / "train.jsonl").read_text().splitlines()]
    arguments = MAGRPOConfig(
        num_agents=2, num_generations=ROLLOUTS, max_new_tokens=new_tokens, temperature=1.0, top_p=1.0, top_k=0, num_turns=1, joint_mode="aligned",
        early_termination_threshold=None, eval_interval=0, agent_learning_rate=rate, rollout_buffer_size=QUERIES, num_train_epochs=1,
        agent_devices="cpu")
    draw = random.Random(seed)
    rows = [{"prompt": q} for _ in range(STEPS) for q in draw.sample(questions, QUERIES)]
    trainer = MAGRPOTrainer(
        agents=[load(folder / agent) for agent in task.AGENTS], num_agents=2, args=arguments, tokenizer=models.tokenizer(), train_dataset=rows,
        formatters=lambda row: task.prompt(row["prompt"]), reward_func=reward)
    trainer.train()
    trainer.save_model(folder / f"comlrl-{rate}")
    return {agent: folder / f"comlrl-{rate}" / f"agent_{i}" for i, agent in enumerate(task.AGENTS)}


def reward(*completions, batch_items):
    """Returns the team's reward. Each agent gives one completion."""
    return [task.reward(batch_items[0]["prompt"], {a: c[0] for a, c in zip(task.AGENTS, completions, strict=True)})]


PROGRAMS = {"mgrpo": mgrpo, "comlrl": comlrl}


def compared(seed, rates, new_tokens):
    """Returns the accuracies of a seed before and after training, by program and rate."""
    questions = task.questions(seed, 1200)
    train, held_out = questions[:1000], questions[1000:]
    row = {"seed": seed, "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        models.save(folder, seed, train)
        row["before"] = models.accuracy({a: load(folder / a) for a in task.AGENTS}, held_out)
        for rate in rates:
            for name, train_team in PROGRAMS.items():
                began = time.perf_counter()
                folders = train_team(folder, seed, rate, new_tokens)
                seconds = time.perf_counter() - began
                after = models.accuracy({a: load(f) for a, f in folders.items()}, held_out)
                row["runs"].append({"program": name, "rate": rate, "after": after, "seconds": seconds})
                print(f"seed {seed}, rate {rate}, {name}: {row['before']:.3f} to {after:.3f} in {seconds:.0f} s", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5, choices=range(1, 11), metavar="N", help="1 to 10")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--new-tokens", type=int, default=4, help="largest number of tokens of a reply")
    parser.add_argument("--out", default="bench/results/comlrl.json")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=8"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    result = {"commit": commit, "comlrl": importlib.metadata.version("comlrl"), "transformers": transformers.__version__,
              "torch": torch.__version__, "steps": STEPS, "queries": QUERIES, "rollouts": ROLLOUTS, "new_tokens": options.new_tokens, "seeds": []}
    for seed in range(options.seeds):
        result["seeds"].append(compared(seed, options.rates, options.new_tokens))
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    report(result["seeds"], options.rates)


def report(seeds, rates):
    """Prints the means over the seeds and, with several seeds, the mean difference with its 95 % interval."""
    print(f"before: mean {statistics.mean(s['before'] for s in seeds):.3f}")
    for rate in rates:
        ours, theirs = ([r["after"] for s in seeds for r in s["runs"] if (r["program"], r["rate"]) == (name, rate)] for name in PROGRAMS)
        line = f"rate {rate}: mgrpo {statistics.mean(ours):.3f}, comlrl {statistics.mean(theirs):.3f}"
        if len(seeds) > 1:
            differences = torch.tensor([a - b for a, b in zip(ours, theirs, strict=True)])
            mean, error = differences.mean().item(), differences.std().item() / len(seeds)**0.5
            half = T95[len(seeds) - 2] * error
            line += f", difference {mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"
        print(line)


main()
