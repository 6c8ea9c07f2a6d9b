"""Writes a golden case as a GGUF file with gguf-py, by its names of tensors, and asks llama.cpp for the case's greedy text.

  pip install gguf==0.19.0 xllamacpp==2026.10.11549 numpy && python bench/goldens/gguf_files.py CASE_FOLDER FILE.gguf

The order of rows, the metadata and the names are those of llama.cpp's own converter. Nothing of mgrpo runs. The text must be that of
transformers, and each log-prob within 2e-3 of it.
"""
import json
import sys
import urllib.request

import gguf
import numpy
import xllamacpp

TOLERANCE = 2e-3  # nats; llama.cpp rounds some activations to 16 bits


def tensors_of(file):
    """The tensors of a safetensors file, in float32."""
    with open(file, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    for name, t in header.items():
        if name == "__metadata__" or t["dtype"] not in ("F32", "BF16"):
            continue
        raw = data[slice(*t["data_offsets"])]
        wide = numpy.frombuffer(raw, "<f4") if t["dtype"] == "F32" else (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        yield name, wide.reshape(t["shape"])


def turned(w, heads):
    """Rows of queries or keys with the two halves of each head interleaved, as llama.cpp's rotary embedding of pairs needs them."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def granite(writer, c):
    writer.add_attention_scale(c["attention_multiplier"])
    writer.add_embedding_scale(c["embedding_multiplier"])
    writer.add_residual_scale(c["residual_multiplier"])
    writer.add_logit_scale(c["logits_scaling"])


def nothing(writer, c):
    pass


# The architecture, whether rows of queries and keys are turned, and the keys that only this architecture has.
FAMILIES = {
    "granite": (gguf.MODEL_ARCH.GRANITE, True, granite),
    "olmo2": (gguf.MODEL_ARCH.OLMO2, False, nothing),
    "ernie4_5": (gguf.MODEL_ARCH.ERNIE4_5, False, nothing),
}


def write(folder, path, c, eos):
    arch, pairs, own = FAMILIES[c["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(c["vocab_size"])
    own(writer, c)
    pairs_of_letters = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(c["vocab_size"] - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pairs_of_letters + ["A", "B", "AB"])  # llama.cpp wants a merge
    writer.add_token_types([gguf.TokenType.NORMAL] * c["vocab_size"])
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(eos)
    writer.add_eos_token_id(eos)
    names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    for name, w in tensors_of(f"{folder}/model.safetensors"):
        if pairs and ".q_proj." in name:
            w = turned(w, heads)
        if pairs and ".k_proj." in name:
            w = turned(w, kv)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), numpy.ascontiguousarray(w))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def greedy(path, prompt, n):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 256
    params.n_parallel = 1
    params.verbosity = -1
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    body = dict(prompt=prompt, n_predict=n, temperature=0, n_probs=2, cache_prompt=False)
    request = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    tokens = json.load(urllib.request.urlopen(request))["completion_probabilities"]
    return [t["id"] for t in tokens], [t["logprob"] for t in tokens]


def main():
    folder, path = sys.argv[1:]
    with open(f"{folder}/expected.json") as f:
        want = json.load(f)["greedy"]
    with open(f"{folder}/config.json") as f:
        config = json.load(f)
    write(folder, path, config, min(set(range(config["vocab_size"])) - set(want["new_ids"])))  # at its end llama.cpp would stop
    logits = dict(tensors_of(f"{folder}/expected.safetensors"))["greedy_logits"].astype("f8")
    logits -= numpy.log(numpy.exp(logits).sum(1, keepdims=True))
    ids, logprobs = greedy(path, want["prompt_ids"], len(want["new_ids"]))
    off = max(abs(row[i] - p) for row, i, p in zip(logits, ids, logprobs, strict=True))
    print(f"{path}: {len(ids)} log-probs of llama.cpp differ from transformers' by {off:.1e} nats at most")
    if ids != want["new_ids"] or off > TOLERANCE:
        sys.exit(f"llama.cpp continues with {ids}, transformers with {want['new_ids']}")


if __name__ == "__main__":
    main()
