#!/usr/bin/env python3
"""Compares how fast mgrpo and Hugging Face's tokenizers library encode ten megabytes of mixed text, on one thread each, in turns.

usage: speed.py SPEED_PROGRAM FOLDER...  Prints a line of JSON a tokenizer: the medians of three rounds, and their ratio.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402, it reads the variable

from texts import KINDS, anything, digits, lines, pieces, scripts, words  # noqa: E402


def mixed(size):
    """Documents of 2,000 to 20,000 characters: half prose of a few words, the rest source code, other scripts and noise."""
    r = random.Random(1)
    source = [p.read_text("utf-8") for p in sorted(Path(__file__).resolve().parents[2].glob("trainer/**/*.go"))]
    makers = [words, words, words, lambda r, n: r.choice(source)[:n * 6], lines, scripts, pieces, digits, anything, lambda r, n: " ".join(r.choice(KINDS["scripts"]) for _ in range(n // 8))]
    documents, total = [], 0
    while total < size:
        text = ""
        while len(text) < r.randint(2000, 20000):
            text += r.choice(makers)(r, 400) + "\n"
        documents.append(text)
        total += len(text.encode())
    return documents


def main():
    program, folders = sys.argv[1], sys.argv[2:]
    documents = mixed(10_000_000)
    size = sum(len(d.encode()) for d in documents) / 1e6
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write("".join(json.dumps(d) + "\n" for d in documents))
        f.flush()
        for folder in folders:
            t = Tokenizer.from_file(f"{folder}/tokenizer.json")
            ours, theirs = [], []
            for _ in range(3):
                got = json.loads(subprocess.run([program, folder, f.name], check=True, capture_output=True, text=True).stdout)
                start = time.perf_counter()
                tokens = sum(len(t.encode(d, add_special_tokens=False).ids) for d in documents)
                theirs.append(size / (time.perf_counter() - start))
                ours.append(got["mb_per_s"])
                if tokens != got["tokens"]:
                    sys.exit(f"{folder}: {got['tokens']} tokens, the tokenizers library has {tokens}")
            a, b = statistics.median(ours), statistics.median(theirs)
            print(json.dumps({"tokenizer": Path(folder).name, "mgrpo_mb_per_s": round(a, 2), "tokenizers_mb_per_s": round(b, 2), "ratio": round(a / b, 2)}), flush=True)


main()
