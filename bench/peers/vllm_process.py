"""vllm_process.py FOLDER DTYPE ROWS TOKENS: vLLM on the CPU, in the environment of bench/engines/setup.sh. vllm_peer.py starts it.
It holds ROWS sequences of up to TOKENS tokens.

It prints the version as JSON, and then answers each line of standard input. {"sample": [[id]], "new_tokens": N}: it samples N tokens after
each row and prints their number. {"score": [[id]]}: it prints the log-probs of each row's ids after the first.
"""
import json
import os
import sys

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # for vLLM's own lines

import vllm  # noqa: E402, it prints lines

folder, dtype, rows, tokens = sys.argv[1:]
llm = vllm.LLM(model=folder, skip_tokenizer_init=True, dtype=dtype, max_model_len=int(tokens), max_num_seqs=int(rows), disable_log_stats=True,
               enable_prefix_caching=False)


def generate(rows, **chosen):
    settings = vllm.SamplingParams(ignore_eos=True, detokenize=False, **chosen)
    return llm.generate([{"prompt_token_ids": ids} for ids in rows], settings, use_tqdm=False)


def sample(rows, new_tokens):
    return sum(len(a.outputs[0].token_ids) for a in generate(rows, temperature=1, top_p=1, top_k=0, max_tokens=new_tokens))


def score(rows):
    answers = generate(rows, temperature=0, max_tokens=1, prompt_logprobs=0)
    return [[at[i].logprob for at, i in zip(a.prompt_logprobs[1:], ids[1:], strict=True)] for a, ids in zip(answers, rows, strict=True)]


def answer(asked):
    return score(asked["score"]) if "score" in asked else sample(asked["sample"], asked["new_tokens"])


print(json.dumps(vllm.__version__), file=out, flush=True)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=out, flush=True)
