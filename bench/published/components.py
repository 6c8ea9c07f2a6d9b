#!/usr/bin/env python3
"""Writes what each component of a tokenizer.json does to texts, as Hugging Face's tokenizers library does it.

usage: components.py OUT.jsonl. Each line has "normalizer", "pre_tokenizer" or "decoder", the component as in tokenizer.json. The
first two also have "text" and "want" (the text, or the pieces), and a decoder has "tokens" and "want" (the text).
"""
import itertools
import json
import random
import sys

from tokenizers import Tokenizer, models

TEXTS = [
    "", " ", "a", " a b  c ", "Hello, World! It's 12.5% of 1,000", "don't DON'T 'S'll", "x\n\n y\t\r\nz", "▁a▁▁b ▁", "  lead and trail  ",
    "ÀÉÎ Straße ΑΣ İstanbul ǅ", "ﬁne ½ ① Å e\u0301 \u0301x ｶﾞ", "日本語 mixed 中文 text", "1٣4५6 ²³ Ⅷ", "a_b-c.d/e\\f|g", "«quote» – dash… ¿qué?", "😀👍🏽 a😀b",
    "$5 + 3 = 8 ^ ~ `code`", "ABCDEFxyz aaaa bb", "\u00a0nbsp\u3000wide\u2028line", "foo  <0x41> [x] {y}", "\u200bzero\u200dwidth", "aXbXXc",
]

def sequence(kind, parts):
    key = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[kind]
    return {"type": "Sequence", key: parts}

def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}

def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

def metaspace(**options):
    return {"type": "Metaspace", "replacement": "▁", **options}

NORMALIZERS = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")] + [
    {"type": "Strip", "strip_left": left, "strip_right": right} for left, right in itertools.product((True, False), repeat=2)
] + [
    {"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁"), replace({"Regex": " {2,}"}, "_"), replace({"Regex": "\\s+"}, ""),
    replace({"Regex": "\\d+(?=\\.)"}, "N"), replace({"String": "."}, "!"), replace({"Regex": "^a|z$"}, "Q"),
    replace({"Regex": "[^\\w\\s]"}, "#"), replace({"Regex": "a*"}, "<"),
    sequence("normalizer", []), sequence("normalizer", [{"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁")]),
    sequence("normalizer", [{"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"}]),
]

PATTERNS = [{"String": " "}, {"String": "a"}, {"String": "."}, {"Regex": "\\s+"}, {"Regex": "\\p{N}{1,3}"}, {"Regex": "\\w+|[^\\w\\s]+"}, {"Regex": " ?[^\\s]+|\\s+(?!\\S)|\\s+"},
            {"Regex": "\\d{1,3}(?=(?:\\d{3})*\\b)"}, {"Regex": "[A-Z]++[a-z]?+|\\S"}, {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|\\p{L}+"}, {"Regex": "\\p{Han}+|\\p{^L}"}, {"Regex": "x*"},
            {"Regex": "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}]

PRE_TOKENIZERS = [split(p, b, i) for p in PATTERNS for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous") for i in (False, True)] + [
    {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex} for prefix, regex in itertools.product((True, False), repeat=2)
] + [
    metaspace(prepend_scheme=scheme, split=s) for scheme in ("always", "first", "never") for s in (True, False)
] + [
    metaspace(), {"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
] + [{"type": "Punctuation", "behavior": b} for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")] + [
    sequence("pre_tokenizer", []),
    sequence("pre_tokenizer", [{"type": "WhitespaceSplit"}, metaspace(prepend_scheme="always", split=True)]),
    sequence("pre_tokenizer", [{"type": "Punctuation", "behavior": "Isolated"}, metaspace(prepend_scheme="first", split=True)]),
    sequence("pre_tokenizer", [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]),
    sequence("pre_tokenizer", [split({"Regex": "\\p{N}{1,3}"}, "Isolated"), {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Whitespace"}]),
]

FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
SPACES = replace({"String": "▁"}, " ")

def strip(start, stop, content=" "):
    return {"type": "Strip", "content": content, "start": start, "stop": stop}

DECODERS = [
    sequence("decoder", [SPACES, FALLBACK, FUSE]), sequence("decoder", [SPACES, FALLBACK, FUSE, strip(1, 0)]), sequence("decoder", [SPACES, FALLBACK, FUSE, strip(3, 0)]),
    sequence("decoder", [strip(1, 0, "▁"), SPACES]), sequence("decoder", [strip(0, 1, "b"), SPACES]), sequence("decoder", [FALLBACK]), sequence("decoder", [FUSE]), sequence("decoder", [replace({"Regex": "▁+"}, "_"), FALLBACK, FUSE]),
    metaspace(prepend_scheme="always", split=True), metaspace(prepend_scheme="first", split=False), metaspace(prepend_scheme="never", split=True), metaspace(),
    sequence("decoder", [metaspace(prepend_scheme="always"), FALLBACK, FUSE]), {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
]

def token_lists():
    r = random.Random(3)
    pool = ["▁", "▁▁", "▁the", "a", "▁a", "é", "<0xC3>", "<0xA9>", "<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0x0a>", "<0xZZ>", "<0xFF>", "<s>", "Ġx", "ĊĠ", "Ã", "©", "b▁", " ", "漢"]
    fixed = [[], ["▁a"], ["▁", "▁a", "b▁"], ["<0xC3>", "<0xA9>"], ["<0xC3>", "a", "<0xA9>"], ["<0xC3>", "<0xA9>", "<0xC3>"], ["▁", "<0xE2>", "<0x82>", "<0xAC>"], ["Ã", "©", "Ġx"]]
    return fixed + [[r.choice(pool) for _ in range(r.randint(1, 8))] for _ in range(40)]

def holder(kind, component):
    t = Tokenizer(models.BPE())
    d = json.loads(t.to_str())
    d[kind] = component
    return Tokenizer.from_str(json.dumps(d))

def main():
    with open(sys.argv[1], "w", encoding="ascii") as out:
        def row(**fields):
            out.write(json.dumps(fields) + "\n")
        for c in NORMALIZERS:
            n = holder("normalizer", c).normalizer
            for text in TEXTS:
                row(normalizer=c, text=text, want=n.normalize_str(text))
        for c in PRE_TOKENIZERS:
            p = holder("pre_tokenizer", c).pre_tokenizer
            for text in TEXTS[1:]:
                row(pre_tokenizer=c, text=text, want=[piece for piece, _ in p.pre_tokenize_str(text)])
        for c in DECODERS:
            d = holder("decoder", c).decoder
            for tokens in token_lists():
                row(decoder=c, tokens=tokens, want=d.decode(tokens))

main()
