#!/usr/bin/env python3
"""Compares mgrpo with llama.cpp (xllamacpp) on a GGUF file: greedy continuations of prompts, and their log-probs.

usage: continuations.py MGRPO MODEL.gguf

Two comparisons. The first takes a copy of the file whose matrices are widened to float32: both sides then multiply the same
numbers, and must agree closely. The second takes the file as it is. llama.cpp rounds activations to 8 bits for its products with
quantised weights, and mgrpo does not. So log-probs differ by about the size of that rounding. A continuation may leave
llama.cpp's only at a token whose two likeliest candidates are closer than twice the tolerance. The last prompt is longer than the
model's window.
"""
import json
import os
import subprocess
import sys
import urllib.request

import gguf
import xllamacpp

NEW_TOKENS = 16
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "12 + 30 = 42, 7 + 8 =",
    "Die Hauptstadt von Österreich ist",
    " ".join(f"Box {i} has {i * 7 % 23} apples." for i in range(1, 81)) + " Box 3 has",
]
# Differences of log-probs in nats, about three times the differences of Gemma 3 270M. In float32 the rest comes from ggml's GELU, which
# looks up its values in a table of 16-bit numbers.
TOLERANCE = {"float32": 2e-2, "quantised": 1.0}
MEAN_TOLERANCE = {"float32": 2e-3, "quantised": 0.12}


def widened(path):
    """Returns a copy of the file with all tensors in float32, which is made once."""
    out = path.removesuffix(".gguf") + ".f32.gguf"
    if os.path.exists(out):
        return out
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out + ".part", architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        writer.add_tensor(t.name, gguf.quants.dequantize(t.data, t.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(out + ".part", out)
    return out


def llama_cpp(path):
    """Returns llama.cpp's prompt ids, and the id, the log-prob and the distance to the second candidate for each greedy token."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 2048
    params.n_parallel = 1
    params.verbosity = -1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)

    def post(route, **body):
        request = urllib.request.Request(server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))

    answers = []
    for text in PROMPTS:
        ids = post("/tokenize", content=text, add_special=True)["tokens"]
        done = post("/completion", prompt=ids, n_predict=NEW_TOKENS, temperature=0, n_probs=2, cache_prompt=False)
        tokens = done["completion_probabilities"]
        answers.append((ids, [t["id"] for t in tokens], [t["logprob"] for t in tokens], [t["top_logprobs"][0]["logprob"] - t["top_logprobs"][1]["logprob"] for t in tokens]))
    return answers


def ours(command, rows):
    done = subprocess.run(command, input="".join(json.dumps(r) + "\n" for r in rows), stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(kind, mgrpo, path):
    """Reports whether continuations and log-probs agree, and prints the differences."""
    want = llama_cpp(path)
    scored = ours([mgrpo, "score", "--model", path], [{"ids": ids + new} for ids, new, _, _ in want])
    greedy = ours([mgrpo, "generate", "--model", path, "--temperature", "0", "--max-new", str(NEW_TOKENS)], [{"ids": ids} for ids, _, _, _ in want])
    differences, alike, odd = [], 0, []
    for (ids, new, logprobs, gaps), score, text in zip(want, scored, greedy, strict=True):
        differences += [abs(a - b) for a, b in zip(score["logprobs"][len(ids) - 1:], logprobs, strict=True)]
        left = next((i for i, (a, b) in enumerate(zip(text["ids"], new)) if a != b), len(new))
        alike += left
        if left < len(new) and gaps[left] > 2 * TOLERANCE[kind]:
            odd.append(f"token {left} of {ids[:8]}... is {text['ids'][left]}, llama.cpp has {new[left]} by {gaps[left]:.3f} nats")
    largest, mean = max(differences), sum(differences) / len(differences)
    good = largest <= TOLERANCE[kind] and mean <= MEAN_TOLERANCE[kind] and not odd
    print(f"{'equal' if good else 'DIFFERS'}: {os.path.basename(path)} ({kind}) and llama.cpp: {len(differences)} log-probs differ by {largest:.1e} at most, "
          f"{mean:.1e} on average; {alike} of {sum(len(w[1]) for w in want)} greedy tokens before the first other one", *odd, sep="\n  ", flush=True)
    return good


def main():
    mgrpo, path = sys.argv[1:]
    results = [compare("float32", mgrpo, widened(path)), compare("quantised", mgrpo, path)]
    sys.exit(not all(results))


main()
