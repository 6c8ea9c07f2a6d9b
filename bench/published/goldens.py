#!/usr/bin/env python3
"""Writes what Hugging Face's tokenizers library makes of texts, in the layout of testdata/tokenizer.

usage: goldens.py MODEL_FOLDER OUT_FOLDER [SEED [COUNT]]
"""
import json
import random
import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer

from texts import texts


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    seed, count = (int(a) for a in (sys.argv[3:] + ["1", "1000"][len(sys.argv) - 3:]))
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    t = Tokenizer.from_file(str(source / "tokenizer.json"))
    t.no_padding()
    t.no_truncation()
    data = json.loads((source / "tokenizer.json").read_text("utf-8"))
    added = [a["content"] for a in data["added_tokens"] if len(a["content"]) > 1]

    def row(ids, **fields):
        decoded, skipped = (t.decode(ids, skip_special_tokens=skip) for skip in (False, True))
        return json.dumps({**fields, "ids": ids, "decoded": decoded, **({"decoded_skip_special": skipped} if skipped != decoded else {})}) + "\n"

    with open(out / "cases.jsonl", "w", encoding="ascii") as f:
        for kind, text in texts(added, seed, count):
            f.write(row(t.encode(text, add_special_tokens=False).ids, text=text, note=kind))
    r = random.Random(seed)  # ids that no text gives: halves of characters, special tokens between them
    ids = sorted({*data["model"]["vocab"].values(), *(a["id"] for a in data["added_tokens"])})
    byte_tokens = [i for token, i in data["model"]["vocab"].items() if token.startswith("<0x")]
    with open(out / "bytes.jsonl", "w", encoding="ascii") as f:
        for _ in range(100):
            f.write(row([r.choice(byte_tokens if byte_tokens and r.random() < 0.4 else ids) for _ in range(r.randint(1, 10))]))


main()
