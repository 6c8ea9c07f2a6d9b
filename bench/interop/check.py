"""check.py MGRPO FOLDER...: checks that transformers, peft and mgrpo read the same folders alike.

For each folder transformers loads the class that config.json names in float32 and scores random token ids; `mgrpo score` scores the same
ids. peft loads a folder with an adapter onto the base that it names, and transformers also scores the result of `mgrpo merge`.
Log-probs must agree within 1e-4 nats and entropies within 1e-3. An adapter must change more than that. A folder with a tokenizer must give
the same ids for a few texts.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(__file__)
sys.path += [HERE, os.path.join(HERE, "..")]
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
from transformers.utils import logging

from checked import record
from ours import lines, longest, random_rows, scored

LOGPROB_TOLERANCE = 1e-4
ENTROPY_TOLERANCE = 1e-3
TEXTS = ["The quick brown fox.", "  12 + 30 = 42\n\nnaïve café 東京 🦊", "search ( x ) -> y"]


def reference(model, ids):
    """Returns the log-probs of ids[1:] and entropies, in float64 from the model's float32 logits."""
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double(), -1)
    picked = logp.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return picked, -(logp.exp() * logp).sum(-1)


def class_of(folder):
    """Returns the class that config.json names."""
    if folder.endswith(".gguf"):
        return AutoModelForCausalLM
    with open(os.path.join(folder, "config.json")) as f:
        return getattr(transformers, json.load(f)["architectures"][0])


def load(folder):
    """Returns the model of a folder or of a GGUF file, and mgrpo's arguments for it."""
    adapter = os.path.join(folder, "adapter_config.json")
    if os.path.exists(adapter):
        from peft import PeftModel

        with open(adapter) as f:
            base = json.load(f)["base_model_name_or_path"]
        model, named = load(base)
        return PeftModel.from_pretrained(model, folder).eval(), [*named, "--adapter", folder]
    place = {"pretrained_model_name_or_path": folder}
    if folder.endswith(".gguf"):
        place = {"pretrained_model_name_or_path": os.path.dirname(folder), "gguf_file": os.path.basename(folder)}
    model, loading = class_of(folder).from_pretrained(**place, dtype=torch.float32, output_loading_info=True)
    loading["unexpected_keys"] = [k for k in loading["unexpected_keys"] if not k.startswith("mtp.")]  # no class of transformers reads them
    odd = {k: sorted(v) for k, v in loading.items() if v and k != "error_msgs"} or loading["error_msgs"]
    if odd:
        sys.exit(f"{folder}: transformers finds {odd}")
    return model.eval(), ["--model", folder]


def equal(what, got, want):
    """Reports whether the log-probs and entropies of all rows agree, and prints their largest differences."""
    logp, entropy = (max((torch.as_tensor(g[i], dtype=torch.float64) - w[i]).abs().max().item() for g, w in zip(got, want, strict=True)) for i in (0, 1))
    good = logp <= LOGPROB_TOLERANCE and entropy <= ENTROPY_TOLERANCE
    print(f"{'equal' if good else 'DIFFERS'}: {what}: log-prob {logp:.1e}, entropy {entropy:.1e}", flush=True)
    return good


def check_merged(mgrpo, folder, named, rows, want):
    """Reports whether mgrpo's merge of an adapter computes the same as peft with the adapter."""
    with tempfile.TemporaryDirectory() as parent:
        merged = os.path.join(parent, "merged")
        subprocess.run([mgrpo, "merge", *named, "--out", merged], check=True)
        model, _ = load(merged)
        return equal(f"{folder}, merged", [reference(model, ids) for ids in rows], want)


def check_tokenizer(mgrpo, folder):
    # For some types of models AutoTokenizer ignores tokenizer.json and makes a tokenizer only of the vocabulary.
    config, alone = os.path.join(folder, "config.json"), False
    if os.path.exists(config):
        with open(config) as f:
            alone = json.load(f)["model_type"] in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    tokenizer = (PreTrainedTokenizerFast if alone else AutoTokenizer).from_pretrained(folder)
    for text, got in zip(TEXTS, lines([mgrpo, "tokenize", "--model", folder], [{"text": t} for t in TEXTS]), strict=True):
        want = tokenizer(text, add_special_tokens=False)["input_ids"]
        if got["ids"] != want:
            sys.exit(f"{folder}: {text!r} is {got['ids']}, transformers says {want}")


def check(mgrpo, folder):
    """Reports whether all parts of the folder are read alike."""
    model, named = load(folder)
    text = model.config.get_text_config().to_dict()
    rows = random_rows(text["vocab_size"], (2, 17, longest(text)))
    want = [reference(model, ids) for ids in rows]
    good = equal(folder, scored(mgrpo, named, rows), want)
    if "--adapter" in named:
        with model.disable_adapter():
            moved = max((reference(model, ids)[0] - w[0]).abs().max().item() for ids, w in zip(rows, want, strict=True))
        if moved <= LOGPROB_TOLERANCE:
            sys.exit(f"{folder}: the adapter changes log-probs by {moved:.1e} only, so it shows nothing")
        good &= check_merged(mgrpo, folder, named, rows, want)
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        check_tokenizer(mgrpo, folder)
    if good:
        family = getattr(model.config, "text_config", model.config).model_type
        package = "peft" if "--adapter" in named else "transformers"
        record(package, package, [family])
    return good


def main():
    logging.disable_progress_bar()
    mgrpo, folders = sys.argv[1], sys.argv[2:]
    results = [check(mgrpo, folder) for folder in folders]
    sys.exit(not results or not all(results))


main()
