"""check.py MGRPO FOLDER...: transformers, peft and mgrpo read the same folders alike.

For each folder transformers loads the model in float32 and scores random token ids; `mgrpo score` scores the
same ids. A folder with an adapter is loaded by peft, onto the base that it names. Log-probs must agree within 1e-4 nats,
entropies within 1e-3, and a folder with a tokenizer must give the same ids for a few texts.
"""
import json
import os
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

LOGPROB_TOLERANCE = 1e-4
ENTROPY_TOLERANCE = 1e-3
TEXTS = ["The quick brown fox.", "  12 + 30 = 42\n\nnaïve café 東京 🦊", "search ( x ) -> y"]


def lines(command, rows):
    """What an mgrpo command answers to the rows, both as JSON lines."""
    done = subprocess.run(command, input="".join(json.dumps(r) + "\n" for r in rows), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return [json.loads(line) for line in done.stdout.splitlines()]


def reference(model, ids):
    """Log-probs of ids[1:] and entropies, in float64 from the model's float32 logits."""
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double(), -1)
    picked = logp.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return picked, -(logp.exp() * logp).sum(-1)


def load(folder):
    """The model of a folder, and how mgrpo is told of it."""
    adapter = os.path.join(folder, "adapter_config.json")
    if os.path.exists(adapter):
        from peft import PeftModel

        with open(adapter) as f:
            base = json.load(f)["base_model_name_or_path"]
        model, named = load(base)
        return PeftModel.from_pretrained(model, folder), [*named, "--adapter", folder]
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    odd = {k: sorted(v) for k, v in loading.items() if v and k != "error_msgs"} or loading["error_msgs"]
    if odd:
        sys.exit(f"{folder}: transformers finds {odd}")
    return model, ["--model", folder]


def check(mgrpo, folder):
    """The largest differences in log-prob and entropy, and the number of texts compared."""
    model, named = load(folder)
    model.eval()
    generator = torch.Generator().manual_seed(1)
    longest = min(128, model.config.max_position_embeddings)
    rows = [torch.randint(model.config.vocab_size, (n,), generator=generator).tolist() for n in (2, 17, longest)]
    worst_logp = worst_entropy = 0.0
    for ids, got in zip(rows, lines([mgrpo, "score", *named, "--dtype", "fp32"], [{"ids": r} for r in rows]), strict=True):
        logp, entropy = reference(model, ids)
        worst_logp = max(worst_logp, (logp - torch.tensor(got["logprobs"], dtype=torch.float64)).abs().max().item())
        worst_entropy = max(worst_entropy, (entropy - torch.tensor(got["entropy"], dtype=torch.float64)).abs().max().item())
    if not os.path.exists(os.path.join(folder, "tokenizer.json")):
        return worst_logp, worst_entropy, 0
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, got in zip(TEXTS, lines([mgrpo, "tokenize", "--model", folder], [{"text": t} for t in TEXTS]), strict=True):
        want = tokenizer(text, add_special_tokens=False)["input_ids"]
        if got["ids"] != want:
            sys.exit(f"{folder}: {text!r} is {got['ids']}, transformers says {want}")
    return worst_logp, worst_entropy, len(TEXTS)


def main():
    logging.disable_progress_bar()
    mgrpo, folders = sys.argv[1], sys.argv[2:]
    failed = not folders
    for folder in folders:
        logp, entropy, texts = check(mgrpo, folder)
        good = logp <= LOGPROB_TOLERANCE and entropy <= ENTROPY_TOLERANCE
        failed |= not good
        print(f"{'equal' if good else 'DIFFERS'}: {folder}: log-prob {logp:.1e}, entropy {entropy:.1e}, {texts} texts", flush=True)
    sys.exit(failed)


main()
