#!/usr/bin/env python3
"""Trains small SentencePiece models and writes what the sentencepiece library makes of texts.

usage: spm.py OUT_FOLDER. Writes OUT/spm-model-NAME/{tokenizer.model,tokenizer_config.json,cases.jsonl} for each kind of model.
"""
import io
import json
import random
import sys
from pathlib import Path

import sentencepiece

from texts import KINDS, lines, texts, words

OPTIONS = {  # the settings of Llama 2's and Gemma's models
    "llama": dict(add_dummy_prefix=True, unk_id=0, bos_id=1, eos_id=2, pad_id=-1),
    "gemma": dict(add_dummy_prefix=False, unk_id=3, bos_id=2, eos_id=1, pad_id=0),
}


def main():
    for name, options in OPTIONS.items():
        out = Path(sys.argv[1]) / f"spm-model-{name}"
        out.mkdir(parents=True, exist_ok=True)
        r = random.Random(5)
        corpus = [words(r, 40) for _ in range(200)] + [lines(r, 12) for _ in range(50)] + KINDS["prose"] + KINDS["scripts"] + KINDS["code"]
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(t for text in corpus for t in text.split("\n") if "\0" not in t), model_writer=model, model_type="bpe", vocab_size=800, byte_fallback=True, split_digits=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, character_coverage=0.99,
            num_threads=1, minloglevel=2, **options)
        (out / "tokenizer.model").write_bytes(model.getvalue())
        (out / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}) + "\n")
        sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        with open(out / "cases.jsonl", "w", encoding="ascii") as f:
            for kind, text in texts([], 7, 300):
                if "<unk>" in text or "\0" in text:  # the library does not read special tokens in a text
                    continue
                ids = sp.encode(text)
                f.write(json.dumps({"text": text, "ids": ids, "decoded": sp.decode(ids), "note": kind}) + "\n")


main()
