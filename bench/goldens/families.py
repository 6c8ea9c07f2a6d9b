"""Makes golden cases of model families: a small random checkpoint under the published names, and the expected numbers.

bench/goldens/run.sh OUT [CASE ...]

The oracle is transformers on a CPU, in float32 with eager attention. testdata/families/README.md describes the files. For each case it
tries seeds until the greedy path and the routers decide clearly, and until float32 agrees with float64 within CALM times the case's
noise.
"""
import contextlib
import copy
import json
import math
import os
import shutil
import sys
import tempfile
import zlib

import numpy
import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file

from cases import CASES

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

LENGTHS = [29, 14, 4]
PROMPT, NEW = 8, 16
CLEAR, CHOICE = 0.03, 1e-3  # least distance between the best two logits of a greedy step, and between router logits around the last choice
CALM = {"logits": 1e-5, "gradients": 5e-6, "losses": 3e-5, "norms": 1e-4, "sums": 2e-3, "squares": 5e-5}  # float32 against float64
ADAMW = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0, "steps": 5}


@contextlib.contextmanager
def wide():
    """Makes float32 mean float64 while the context is open: transformers casts norms, softmax and rotary tables to float32 by name."""
    kept = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept[:3]
        torch.set_default_dtype(kept[3])


def generator(seed, name):
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))


def value(name, shape, seed):
    """Returns a random tensor that is large enough to change the result of a forward pass."""
    g = generator(seed, name)
    normal = lambda std: torch.randn(shape, generator=g) * std
    module = name.split(".")[-2]
    if name.endswith("layer_scalar"):
        return torch.rand(shape, generator=g) + 0.5
    if name.endswith("bias"):
        return normal(0.3)
    if name.endswith("sinks"):
        return normal(1)
    if "norm" in module or name.endswith("scale"):
        return torch.rand(shape, generator=g) + 0.5
    if module in ("gate", "router"):
        return normal(0.5)
    if module in ("embed_tokens", "embed_tokens_per_layer", "lm_head"):
        return normal(0.3)
    return normal(0.9 / math.sqrt(shape[-1]))


def build(config):
    """Returns a model of a configuration, with arbitrary weights."""
    c = copy.deepcopy(config)
    c.pop("torch_dtype", None)
    return getattr(transformers, config["architectures"][0])(transformers.AutoConfig.for_model(**c)).eval()


def publish(model, folder, config):
    """Writes a checkpoint under the published names, and config.json as in published folders."""
    model.save_pretrained(folder)
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=2)
    for name in os.listdir(folder):
        if name not in ("config.json", "model.safetensors"):
            os.remove(f"{folder}/{name}")


def published(tensors, config):
    """Returns parameters, or other tensors of the same shapes, by their names in published folders."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        other = build(config).to(next(iter(tensors.values())).dtype)
        other.load_state_dict(tensors, strict=False)  # a head that is the embedding is named once
        other.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def load(folder, dtype=torch.float32):
    with open(f"{folder}/config.json") as f:
        cls = getattr(transformers, json.load(f)["architectures"][0])
    model, info = cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")}
    if wrong:
        raise SystemExit(f"{folder}: transformers does not read it as written: {wrong}")
    for m in model.modules():
        if isinstance(m, torch.nn.Embedding):
            m.padding_idx = None  # otherwise a row would not get its gradient
    return model.eval()


def forward(model, row):
    ids = torch.tensor([row])
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]


def router_logits(router, out):
    return out[0].detach().log() if type(router).__name__ == "Gemma4TextRouter" else out[0].detach()  # it returns probabilities


def decisive(router, given, out):
    """Returns the scores that select the experts: the logits, or their sigmoids plus a bias."""
    if type(router).__name__ != "Lfm2MoeTopKRouter":
        return router_logits(router, out)
    return out[0].detach().sigmoid() + (given[1] if router.use_expert_bias else 0)


@contextlib.contextmanager
def routers(model):
    """Collects for every pass through a router: layer, logits, weights of the chosen experts, their numbers, and the scores that select
    them."""
    seen, hooks = [], []
    for name, m in model.named_modules():
        if type(m).__name__.endswith("Router"):
            layer = int(name.split("layers.")[1].split(".")[0])
            hooks.append(m.register_forward_hook(
                lambda m, given, out, layer=layer: seen.append((layer, router_logits(m, out), *(x.detach() for x in out[1:]), decisive(m, given, out)))))
    try:
        yield seen
    finally:
        for h in hooks:
            h.remove()


def closest(seen):
    """Returns the least distance between neighbouring scores of the chosen experts and the next one."""
    gap = math.inf
    for _, _, weights, _, scores in seen:
        best = scores.sort(-1, descending=True).values[:, : weights.shape[-1] + 1]
        gap = min(gap, float((best[:, :-1] - best[:, 1:]).min()))
    return gap


def greedy(model, prompt):
    ids, logits = list(prompt), []
    for _ in range(NEW):
        with torch.no_grad():
            logits.append(forward(model, ids)[-1])
        ids.append(int(logits[-1].argmax()))
    return ids[len(prompt):], torch.stack(logits)


def statistics(logits, row, temperature):
    """Returns the log-probs of the next tokens, and the entropy at each."""
    p = torch.log_softmax(logits / temperature, -1)
    return p[:-1].gather(1, torch.tensor(row[1:])[:, None])[:, 0], -(p.exp() * p).sum(-1)


def loss_of(model, rows, coefs):
    n = sum(len(r) - 1 for r in rows)
    return sum(-(statistics(forward(model, r), r, 1.0)[0] * c).sum() for r, c in zip(rows, coefs)) / n


def gradients(model, rows, coefs):
    model.zero_grad()
    loss = loss_of(model, rows, coefs)
    loss.backward()
    return float(loss.detach()), {n: p.grad.clone() if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()} | {n: torch.zeros_like(b) for n, b in constants_of(model).items()}


def adamw(model, rows, coefs):
    a = ADAMW
    optimizer = torch.optim.AdamW(model.parameters(), lr=a["lr"], betas=(a["beta1"], a["beta2"]), eps=a["eps"], weight_decay=a["weight_decay"])
    losses, norms = [], []
    for _ in range(a["steps"]):
        loss, _ = gradients(model, rows, coefs)
        losses.append(loss)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), a["clip_norm"])))
        optimizer.step()
    with torch.no_grad():
        return {"losses": losses, "grad_norms_pre_clip": norms, "loss_after_last_step": float(loss_of(model, rows, coefs))}


def checksums(tensors):
    return {n: {"sum": float(t.double().sum()), "sumsq": float((t.double() ** 2).sum()), "numel": t.numel()} for n, t in sorted(tensors.items())}


def batch(vocab, seed):
    g = generator(seed, "batch")
    ids = torch.randint(3, vocab, (len(LENGTHS), max(LENGTHS)), generator=g)
    ids[0, 5] = 0  # the padding's id is a token, too
    coef = torch.randn((len(LENGTHS), max(LENGTHS) - 1), generator=g) * 0.8 + 0.4
    for b, n in enumerate(LENGTHS):
        ids[b, n:], coef[b, n - 1:] = 0, 0
    return ids, coef


def padded(rows, width):
    out = torch.zeros((len(rows), width) + tuple(rows[0].shape[1:]), dtype=rows[0].dtype)
    for b, r in enumerate(rows):
        out[b, : len(r)] = r
    return out


def constants_of(model):
    """Returns the buffers that are stored like parameters but that no optimizer changes."""
    stored = model.state_dict()
    return {n: b for n, b in model.named_buffers() if n in stored}


def parameters_of(model):
    return {n: p.detach() for n, p in model.named_parameters()} | constants_of(model)


def everything(folder, config, rows, coefs, dtype=torch.float32):
    """Returns all numbers of a case except the statistics of its logits."""
    model = load(folder, dtype)
    initial = published(parameters_of(model), config)
    coefs = [c.to(dtype) for c in coefs]
    with torch.no_grad(), routers(model) as seen:
        logits = [forward(model, r) for r in rows]
        ids, path = greedy(model, rows[0][:PROMPT])
    loss, grads = gradients(model, rows, coefs)
    grads = published(grads, config)
    steps = adamw(model, rows, coefs)
    return dict(logits=logits, greedy=ids, path=path, loss=loss, grads=grads, adamw=steps, routers=seen,
                initial=checksums(initial), final=checksums(published(parameters_of(model), config)))


def noise(a, b):
    """Returns the distance of float32 (a) from float64 (b), as a share of CALM; above 1 is too far."""
    most = lambda x, y: float((x.double() - y.double()).abs().max())
    scale = lambda x: max(float(x.abs().max()), 1e-12)
    pairs = list(zip(a["adamw"]["losses"] + [a["adamw"]["loss_after_last_step"]], b["adamw"]["losses"] + [b["adamw"]["loss_after_last_step"]]))
    norms = zip(a["adamw"]["grad_norms_pre_clip"], b["adamw"]["grad_norms_pre_clip"])
    off = {
        "logits": max([most(x, y) for x, y in zip(a["logits"], b["logits"])] + [most(a["path"], b["path"])]),
        "gradients": max(most(x, b["grads"][n]) / scale(b["grads"][n]) for n, x in a["grads"].items()),
        "losses": max(abs(x - y) for x, y in pairs),
        "norms": max(abs(x - y) / y for x, y in norms),
        "sums": max(abs(x["sum"] - b["final"][n]["sum"]) for n, x in a["final"].items()),
        "squares": max(abs(x["sumsq"] / b["final"][n]["sumsq"] - 1) for n, x in a["final"].items()),
    }
    return max(off[k] / CALM[k] for k in CALM), off


def attempt(folder, case, seed):
    """Returns a case of one seed, or None if one of its decisions is close."""
    config = case["config"]
    model = build(config)
    with torch.no_grad():
        for name, p in parameters_of(model).items():
            p.copy_(value(name, p.shape, seed) * case.get("scale", {}).get(name.split(".")[-2], 1))
    publish(model.to(getattr(torch, config["torch_dtype"])), folder, config)
    ids, coef = batch(config["vocab_size"], seed)
    rows = [ids[b, :n].tolist() for b, n in enumerate(LENGTHS)]
    coefs = [coef[b, : n - 1] for b, n in enumerate(LENGTHS)]
    model = load(folder)
    with routers(model) as seen, torch.no_grad():
        new, path = greedy(model, rows[0][:PROMPT])
        best = path.topk(2, -1).values
        if float((best[:, 0] - best[:, 1]).min()) < CLEAR or len(set(new)) < 6:
            return None
        for r in rows:
            forward(model, r)
    if closest(seen) < CHOICE:
        return None
    got = everything(folder, config, rows, coefs)
    with wide():
        want = everything(folder, config, rows, coefs, torch.float64)
    return (ids, coef, rows, got, want) + noise(got, want)


def write(folder, name, case, seed, found):
    ids, coef, rows, got, want, _, off = found
    width = max(LENGTHS)
    tensors = {"input_ids": ids, "lengths": torch.tensor(LENGTHS), "coef": coef, "logits": padded(got["logits"], width),
               "greedy_ids": torch.tensor(got["greedy"]), "greedy_logits": got["path"]}
    for temperature in (1.0, 0.7):
        each = [statistics(x, r, temperature) for x, r in zip(got["logits"], rows)]
        tensors[f"logprobs_t{temperature}"] = padded([e[0] for e in each], width - 1)
        tensors[f"entropy_t{temperature}"] = padded([e[1] for e in each], width)
    tensors.update({"grad." + n: t for n, t in got["grads"].items()})
    layers = sorted({r[0] for r in got["routers"]})
    for i, layer in enumerate(layers):
        of = [got["routers"][b * len(layers) + i] for b in range(len(rows))]
        for column, what in enumerate(("router_logits", "expert_weights", "experts"), 1):
            tensors[f"{what}.{layer}"] = padded([r[column] for r in of], width)
    save_file({n: t.contiguous() for n, t in tensors.items()}, f"{folder}/expected.safetensors")
    expected = dict(
        case=name, note=case["note"], family=case["config"]["model_type"], weight_dtype=case["config"]["torch_dtype"], seed=seed,
        versions=dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, safetensors=safetensors.__version__, numpy=numpy.__version__),
        parameter_count=sum(t["numel"] for t in got["initial"].values()),
        loss=got["loss"], loss_f64=want["loss"], greedy=dict(prompt_ids=rows[0][:PROMPT], new_ids=got["greedy"]),
        adamw={**ADAMW, **got["adamw"], "f64": want["adamw"]},
        checksums_initial=got["initial"], checksums_final=got["final"], measured_f32_vs_f64=off)
    with open(f"{folder}/expected.json", "w") as f:
        json.dump(expected, f, indent=1)
    for f in os.listdir(folder):
        os.chmod(f"{folder}/{f}", 0o644)


def make(out, name, case):
    folder, best = f"{out}/{name}", None
    tried = 0
    for seed in range(1, 2000):
        shutil.rmtree(folder, ignore_errors=True)
        found = attempt(folder, case, seed)
        if found is None:
            continue
        tried += 1
        if best is None or found[5] < best[0]:
            best = found[5], seed
        if found[5] <= case["noise"] or tried == 40:
            break
    if best is None or best[0] > case["noise"]:
        raise SystemExit(f"{name}: no seed is calm and clear: {best}")
    write(folder, name, case, best[1], found)
    size = sum(os.path.getsize(f"{folder}/{f}") for f in os.listdir(folder))
    print(f"{name}: seed {best[1]}, {tried} tried, {size // 1024} KiB, {found[6]}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[2:] or CASES:
        make(sys.argv[1], name, CASES[name])
