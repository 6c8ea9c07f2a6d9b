"""A server of llama.cpp for comparisons: one sequence, one thread, and a cache in float32."""
import json
import urllib.request

import xllamacpp


class Server:
    def __init__(self, path):
        """Starts the server for the GGUF file at path."""
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 256
        params.n_parallel = 1
        params.verbosity = -1
        params.warmup = False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(params)

    def greedy(self, ids, n, count):
        """Returns the n likeliest tokens after the ids, one after another: id, logprob, and top_logprobs of `count` tokens each. The server
        reads the whole prompt, because with cached prompts its numbers differ at the end of a full window."""
        body = dict(prompt=ids, n_predict=n, temperature=0, n_probs=count, cache_prompt=False)
        request = urllib.request.Request(self.server.listening_address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["completion_probabilities"]
