"""Runs mgrpo on a folder, for the comparisons here."""
import json
import random
import subprocess
import sys


def lines(command, rows):
    """Returns the replies of an mgrpo command to the rows, both as JSON lines."""
    done = subprocess.run(command, input="".join(json.dumps(r) + "\n" for r in rows), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return [json.loads(line) for line in done.stdout.splitlines()]


def scored(mgrpo, named, rows):
    """Returns for each row of token ids the log-probs of ids[1:] and the entropies at them, in float32."""
    answers = lines([mgrpo, "score", *named, "--dtype", "fp32"], [{"ids": ids} for ids in rows])
    return [(a["logprobs"], a["entropy"]) for a in answers]


def longest(text):
    """Returns the largest number of tokens in a row, from the language model's config.json."""
    most = min(128, text["max_position_embeddings"])
    if text["model_type"] == "phi3":  # in longer texts, frequencies differ from the first token on, which mgrpo refuses
        most = min(most, text.get("original_max_position_embeddings") or most)
    return most


def random_rows(vocab, lengths):
    generator = random.Random(1)
    return [[generator.randrange(vocab) for _ in range(n)] for n in lengths]
