#!/usr/bin/env python3
"""Writes what llama.cpp (xllamacpp) makes of texts with a GGUF file's vocabulary, in the layout of testdata/tokenizer.

usage: vocabulary.py MODEL.gguf OUT.jsonl [COUNT]
"""
import json
import sys
import urllib.request

import xllamacpp

from texts import texts


def main():
    model, out, count = sys.argv[1], sys.argv[2], int((sys.argv + ["1000"])[3])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 64
    params.verbosity = -1
    server = xllamacpp.Server(params)

    def ids(text):
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))["tokens"]

    with open(out, "w", encoding="ascii") as f:
        for kind, text in texts(["<start_of_turn>", "<end_of_turn>", "<eos>", "<bos>"], 3, count):
            if "\0" not in text:
                f.write(json.dumps({"text": text, "ids": ids(text), "note": kind}) + "\n")


main()
