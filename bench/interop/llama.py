"""llama.py MGRPO FOLDER...: checks that llama.cpp reads the files that `mgrpo export` makes of saved folders.

Each folder of a family in EXPORTED gets a small byte-level BPE tokenizer and is exported in F32. llama.cpp then computes log-probs of
the last tokens of random texts, each after all tokens before it, with a cache in float32; `mgrpo score` scores the folder. They must
agree within TOLERANCE nats. If `mgrpo export` refuses a folder, it is named. Each family of EXPORTED must have a folder that is equal.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(__file__)
sys.path += [HERE, os.path.join(HERE, "..")]
from checked import record
from llamacpp import Server
from ours import longest, random_rows, scored

TOLERANCE = 1e-4
GELU_TOLERANCE = 1e-2  # llama.cpp looks up the values of GELU in a table of 16-bit numbers
LAST = 16
EXPORTED = {"ernie4_5", "exaone4", "gemma", "gemma3_text", "glm4", "gpt_oss", "granite", "hunyuan_v1_dense", "lfm2", "lfm2_moe", "llama", "ministral3", "olmo2", "olmo3",
            "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe"}


def tokenizer(vocab):
    """Returns a tokenizer.json of byte-level BPE with this number of tokens: pairs of letters, and one merge."""
    pairs = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(vocab - 3)]
    ids = {token: i for i, token in enumerate([*pairs, "A", "B", "AB"])}
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None, pre_tokenizer=level, post_processor=None, decoder=level,
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                           byte_fallback=False, ignore_merges=False, vocab=ids, merges=[["A", "B"]]))


def exported(mgrpo, folder, vocab, path):
    """Writes the folder as a GGUF file. Returns the reason if it is refused, else nothing."""
    with tempfile.TemporaryDirectory() as copy:
        for name in os.listdir(folder):
            if name.startswith("tokenizer"):
                continue
            os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(copy, name))
        with open(os.path.join(copy, "tokenizer.json"), "w") as f:
            json.dump(tokenizer(vocab), f)
        done = subprocess.run([mgrpo, "export", "--model", copy, "--gguf", path, "--type", "F32"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return done.returncode and (done.stderr.strip() or f"exit status {done.returncode}")


def log_probs(server, ids, count, vocab):
    """Returns llama.cpp's log-probs of the last `count` ids, each after all ids before it."""
    every = (server.greedy(ids[:n], 1, vocab)[0]["top_logprobs"] for n in range(len(ids) - count, len(ids)))
    return [{t["id"]: t["logprob"] for t in top}[i] for top, i in zip(every, ids[-count:], strict=True)]


def check(mgrpo, folder):
    """Returns the folder's family and whether llama.cpp computes the same, or nothing if it is not exported."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    family, vocab = config["model_type"], config["vocab_size"]
    if family not in EXPORTED:
        return family, None
    with tempfile.TemporaryDirectory() as parent:
        path = os.path.join(parent, "model.gguf")
        refused = exported(mgrpo, folder, vocab, path)
        if refused:
            print(f"not exported: {folder}: {refused.removeprefix('mgrpo: ')}", flush=True)
            return family, None
        rows = random_rows(vocab, (2, LAST + 1, longest(config)))
        server = Server(path)
        want = [logp[-LAST:] for logp, _ in scored(mgrpo, ["--model", folder], rows)]
        got = [log_probs(server, ids, len(logp), vocab) for ids, logp in zip(rows, want)]
    off = [abs(g - w) for a, b in zip(got, want, strict=True) for g, w in zip(a, b, strict=True)]
    good = all(d <= (GELU_TOLERANCE if family.startswith("gemma") else TOLERANCE) for d in off)
    print(f"{'equal' if good else 'DIFFERS'}: {folder}, in llama.cpp: log-prob {max(off):.1e}", flush=True)
    return family, good


def main():
    mgrpo, folders = sys.argv[1], sys.argv[2:]
    results = [check(mgrpo, folder) for folder in folders]
    equal = {family for family, good in results if good} - {family for family, good in results if good is False}
    record("llama.cpp-folder", "xllamacpp", equal)
    if EXPORTED - equal:
        sys.exit(f"llama.cpp agrees on no folder, or not on each, of {', '.join(sorted(EXPORTED - equal))}")


main()
