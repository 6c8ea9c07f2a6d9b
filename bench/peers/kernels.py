"""PyTorch's equivalents of our kernels: eager operators, and the same compiled.

Every case is ordinary PyTorch code; preparations that are possible outside of the loop (indices, padding) are outside.
"""
import math

import torch
import torch.nn.functional as F

import inputs
from inputs import index, uniform


def real(d):
    """Returns the type of a case's numbers."""
    return torch.bfloat16 if d.get("half") else torch.float32


def worst(got, want):
    """Returns the largest difference relative to the largest expected value."""
    scale = want.abs().max().item()
    return (got.double() - want).abs().max().item() / (scale or 1.0)


def outputs(out):
    return out if isinstance(out, tuple) else (out,)


class Operator:
    """Returns f(*inputs) and, if gradients of its outputs are given, the gradients of its first `leaves` inputs."""

    def __init__(self, f, inputs, leaves=0, *douts):
        self.f, self.plain, self.inputs, self.leaves, self.douts = f, f, inputs, leaves, douts
        for x in inputs[:leaves]:
            x.requires_grad_(True)

    def compile(self):
        self.f = torch.compile(self.f, dynamic=False, fullgraph=True)

    def reset(self):
        self.out = None
        for x in self.inputs[: self.leaves]:
            x.grad = None

    def run(self):
        if self.leaves:
            self.out = self.f(*self.inputs)
            torch.autograd.backward(outputs(self.out), self.douts)
        else:
            with torch.no_grad():
                self.out = self.f(*self.inputs)

    def check(self):
        wide = [x.detach().double() if x.is_floating_point() else x for x in self.inputs]
        for x in wide[: self.leaves]:
            x.requires_grad_(True)
        want = self.plain(*wide)
        if self.leaves:
            torch.autograd.backward(outputs(want), [g.double() for g in self.douts])
        pairs = [*zip(outputs(self.out), outputs(want))] + [(x.grad, w.grad) for x, w in zip(self.inputs[: self.leaves], wide)]
        return max(worst(a.detach(), b.detach()) for a, b in pairs)


# --- advantages


def advantage(rewards, ids, counts):
    zero = torch.zeros_like(counts)
    centred = rewards - (zero.scatter_add(0, ids, rewards) / counts)[ids]
    deviation = (zero.scatter_add(0, ids, centred * centred) / counts).sqrt()[ids]
    return torch.where(deviation < 1e-6, 0, centred / deviation)


class Advantage(Operator):
    def __init__(self, d):
        sizes = index(2, 15, d["groups"]) + 1
        ids = torch.repeat_interleave(torch.arange(d["groups"], device=inputs.device), sizes)
        super().__init__(advantage, [uniform(1, 1, len(ids)), ids, sizes.float()])

    def check(self):
        rewards, ids, counts = self.inputs
        return worst(self.out, advantage(rewards.double(), ids, counts.double()))


# --- log-probs and the policy loss

ENTROPY = 0.01
ROWS = 64  # rows of the float64 reference at a time


def log_prob(logits, target):
    lp = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return lp.gather(1, target.unsqueeze(1)).squeeze(1), -(lp.exp() * lp).sum(-1)


def objective(logits, target, old, adv, tokens):
    """Returns the clipped surrogate with an entropy bonus for some rows of a batch: a mean over the batch's `tokens` rows."""
    logp, entropy = log_prob(logits, target)
    ratio = torch.exp(logp - old)
    surrogate = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.28) * adv)
    return -(surrogate + ENTROPY * entropy).sum() / tokens


def batch(d):
    """Returns targets, old log-probs and advantages of trajectories of 16 tokens."""
    n, v = d["rows"], d["vocab"]
    return index(2, v, n), uniform(3, 0.3, n) - torch.tensor(math.log(v)).float(), uniform(4, 1, n // 16).repeat_interleave(16)


class LogProb(Operator):
    def __init__(self, d):
        n, v = d["rows"], d["vocab"]
        f = lambda logits, target: torch.stack(log_prob(logits, target))
        dout = torch.stack([uniform(5, 1, n), uniform(6, 1, n)])
        super().__init__(f, [uniform(1, 1, n, v, dtype=real(d)), index(2, v, n)], 1 if d["backward"] else 0, dout)

    def check(self):
        logits, target = self.inputs
        errors = []
        for i in range(0, len(target), max(ROWS, len(target) // 8)):
            rows = slice(i, i + ROWS)
            z = logits[rows].detach().double().requires_grad_(bool(self.leaves))
            want = self.plain(z, target[rows])
            errors.append(worst(self.out[:, rows].detach(), want.detach()))
            if self.leaves:
                want.backward(self.douts[0][:, rows].double())
                errors.append(worst(logits.grad[rows], z.grad))
        return max(errors)


class PolicyLoss(Operator):
    """Computes the loss from logits, and the gradients."""

    def __init__(self, d):
        n = d["rows"]
        f = lambda logits, target, old, adv: objective(logits, target, old, adv, n)
        super().__init__(f, [uniform(1, 1, n, d["vocab"], dtype=real(d)), *batch(d)], 1, torch.ones((), device=inputs.device))

    def check(self):
        logits, *rest = self.inputs
        loss, gradient, scale = 0.0, 0.0, 0.0
        for i in range(0, len(logits), ROWS):
            z = logits[i : i + ROWS].detach().double().requires_grad_(True)
            part = self.plain(z, *(x[i : i + ROWS] if x.dtype == torch.int64 else x[i : i + ROWS].double() for x in rest))
            part.backward()
            loss += part.item()
            gradient = max(gradient, (logits.grad[i : i + ROWS].double() - z.grad).abs().max().item())
            scale = max(scale, z.grad.abs().max().item())
        return max(gradient / scale, abs(self.out.item() - loss) / abs(loss))


class LinearPolicyLoss(Operator):
    """Computes the loss from hidden states and a head's weights, and the gradients."""

    def __init__(self, d):
        n, v, width = d["rows"], d["vocab"], d["width"]
        f = lambda h, w, target, old, adv: objective(F.linear(h, w), target, old, adv, n)
        weights = [uniform(1, 1, n, width, dtype=real(d)), uniform(7, 0.1, v, width, dtype=real(d))]
        super().__init__(f, [*weights, *batch(d)], 2, torch.ones((), device=inputs.device))

    def check(self):
        h, w, *rest = self.inputs
        wide = w.detach().double().requires_grad_(True)
        loss, dh = 0.0, []
        for i in range(0, len(h), ROWS):
            x = h[i : i + ROWS].detach().double().requires_grad_(True)
            part = self.plain(x, wide, *(y[i : i + ROWS] if y.dtype == torch.int64 else y[i : i + ROWS].double() for y in rest))
            part.backward()
            loss += part.item()
            dh.append(x.grad)
        return max(worst(h.grad, torch.cat(dh)), worst(w.grad, wide.grad), abs(self.out.item() - loss) / abs(loss))


class ChunkedLinearPolicyLoss(LinearPolicyLoss):
    """Liger's algorithm: processes a few rows at a time and computes gradients together with the loss, so that no logits are kept. Liger's
    own rule for the size of a chunk gives a few rows for large vocabularies, which takes several times as long on a CPU."""

    rows = 256

    def __init__(self, d):
        super().__init__(d)
        self.flags = {"rows_of_a_chunk": self.rows}
        self.loss = lambda logits, target, old, adv: objective(logits, target, old, adv, d["rows"])

    def run(self):
        h, w, *rest = self.inputs
        with torch.no_grad():
            h.grad, w.grad, self.out = torch.empty_like(h), torch.zeros_like(w), torch.zeros((), device=h.device)
        for i in range(0, len(h), self.rows):
            part = slice(i, i + self.rows)
            x = h[part].detach()
            logits = F.linear(x, w.detach()).requires_grad_(True)
            loss = self.loss(logits, *(y[part] for y in rest))
            (dlogits,) = torch.autograd.grad(loss, logits)
            h.grad[part] = dlogits @ w.detach()
            w.grad.addmm_(dlogits.T, x)
            self.out += loss.detach()


# --- optimizer

ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


class AdamW:
    def __init__(self, d, provider):
        n = d["n"]
        self.p = torch.nn.Parameter(uniform(1, 0.1, n))
        self.p.grad = uniform(2, 1, n)
        self.first = True
        flags = {"torch-eager": dict(foreach=True), "torch-fused": dict(fused=True), "torch-compile": dict(capturable=False)}[provider]
        self.optimizer = torch.optim.AdamW([self.p], **ADAMW, **flags)
        self.update = self.optimizer.step
        self.flags = flags

    def compile(self):
        self.update = torch.compile(self.optimizer.step)

    def reset(self):
        pass

    def run(self):
        torch.nn.utils.clip_grad_norm_([self.p], 1.0)
        self.update()

    def check(self):
        """Returns the largest error after the first update, for which the moments are known in closed form."""
        errors, norm, n = [], 0.0, self.p.numel()
        state = self.optimizer.state[self.p]
        gradient = uniform(2, 1, n)
        norm = math.sqrt(sum(x.double().square().sum().item() for x in gradient.split(1 << 24)))
        p0 = uniform(1, 0.1, n)
        (b1, b2), lr = ADAMW["betas"], ADAMW["lr"]
        for got, m, v, p, g in zip(*(x.split(1 << 24) for x in (self.p.detach(), state["exp_avg"], state["exp_avg_sq"], p0, gradient))):
            g = g.double() * min(1.0, 1.0 / (norm + 1e-6))
            want = p.double() * (1 - lr * ADAMW["weight_decay"]) - lr * g / (g.abs() + ADAMW["eps"])
            errors += [worst(got, want), worst(m, (1 - b1) * g), worst(v, (1 - b2) * g * g)]
        return max(errors)


# --- layers


def rms_norm(d):
    n, width, t = d["rows"], d["width"], real(d)
    f = lambda x, w: F.rms_norm(x, (width,), w, 1e-5)
    return Operator(f, [uniform(1, 1, n, width, dtype=t), uniform(2, 1, width, dtype=t)], 2 * d["backward"], uniform(3, 1, n, width, dtype=t))


def add_rms_norm(d):
    n, width, t = d["rows"], d["width"], real(d)

    def work(x, residual, w):
        total = x + residual
        return total, F.rms_norm(total, (width,), w, 1e-5)

    given = [uniform(1, 1, n, width, dtype=t), uniform(2, 1, n, width, dtype=t), uniform(3, 1, width, dtype=t)]
    return Operator(work, given, 3 * d["backward"], uniform(4, 1, n, width, dtype=t), uniform(5, 1, n, width, dtype=t))


def swiglu(d):
    n, f = d["rows"], d["width"]

    def work(gate_up):
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    return Operator(work, [uniform(1, 1, n, 2 * f, dtype=real(d))], d["backward"], uniform(3, 1, n, f, dtype=real(d)))


def heads(d):
    n, heads, kv, hd, t = d["rows"], d["heads"], d["kv_heads"], d["head_dim"], real(d)
    angle = torch.arange(n, dtype=torch.float64).unsqueeze(1) * 10000.0 ** (-torch.arange(hd // 2, dtype=torch.float64) * 2 / hd)
    cos, sin = (torch.cat([x, x], -1).to(inputs.device, t).unsqueeze(1) for x in (angle.cos(), angle.sin()))

    def turned(x, w, cos, sin):
        x = F.rms_norm(x, (hd,), w, 1e-5)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def work(qkv, q_norm, k_norm, cos, sin):
        q, k, v = qkv.view(n, -1, hd).split([heads, kv, kv], 1)
        return turned(q, q_norm, cos, sin), turned(k, k_norm, cos, sin), v.contiguous()

    given = [uniform(1, 1, n, (heads + 2 * kv) * hd, dtype=t), uniform(2, 1, hd, dtype=t), uniform(3, 1, hd, dtype=t), cos, sin]
    gradients = [uniform(4, 1, n, heads, hd, dtype=t), uniform(5, 1, n, kv, hd, dtype=t), uniform(6, 1, n, kv, hd, dtype=t)]
    return Operator(work, given, 3 * d["backward"], *gradients)


def attention(d):
    """Sequences of different lengths, padded on the right: causal attention works without a mask for them."""
    lengths = index(5, d["longest"] - d["shortest"] + 1, d["sequences"]) + d["shortest"]
    total, longest = int(lengths.sum()), int(lengths.max())

    def padded(stream, heads):
        rows = uniform(stream, 1, total, heads, d["head_dim"], dtype=real(d)).split(lengths.tolist())
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2).contiguous()

    assert longest <= d["longest"]
    q, k, v, dout = padded(1, d["heads"]), padded(2, d["kv_heads"]), padded(3, d["kv_heads"]), padded(4, d["heads"])
    f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    work = Operator(f, [q, k, v], 3 * d["backward"], dout)
    work.real = (torch.arange(longest, device=inputs.device) < lengths.unsqueeze(1))[:, None, :, None]
    if not d["backward"]:  # results at padded positions are not outputs
        whole = work.f
        work.plain = lambda q, k, v: whole(q, k, v) * work.real
        check = work.check

        def masked():
            work.out = work.out * work.real
            return check()

        work.check = masked
    return work


def decode_attention(d):
    shape = d["sequences"], d["kv_heads"], d["context"], d["head_dim"]
    q = uniform(1, 1, d["sequences"], d["heads"], 1, d["head_dim"], dtype=real(d))
    k, v = uniform(2, 1, *shape, dtype=real(d)), uniform(3, 1, *shape, dtype=real(d))
    return Operator(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), [q, k, v])


def rule_inputs(d, rows):
    """Returns a gated delta rule's rows of queries, keys and values, and of steps and decays; then A_log and dt_bias."""
    width, heads, t = (2 * d["key_heads"] + d["value_heads"]) * d["head_dim"], d["value_heads"], real(d)
    return [uniform(1, 1, rows, width, dtype=t), uniform(2, 1, rows, 2 * heads, dtype=t), uniform(3, 1, heads), uniform(4, 1, heads)]


def rule_terms(d, sequences, x, ba, a_log, dt_bias):
    """Returns the arguments of transformers' functions, as its layer computes them.

    They are q, k, v [B, L, H, d]; g, beta [B, L, H] with H = value_heads.
    """
    keys = d["key_heads"] * d["head_dim"]
    q, k, v = x.view(sequences, -1, x.shape[-1]).split([keys, keys, d["value_heads"] * d["head_dim"]], -1)
    beta, a = ba.view(sequences, -1, ba.shape[-1]).chunk(2, -1)
    wide = torch.promote_types(a.dtype, torch.float32)
    g = -a_log.to(wide).exp() * F.softplus(a.to(wide) + dt_bias)
    q, k, v = (y.reshape(*y.shape[:2], -1, d["head_dim"]) for y in (q, k, v))
    if (times := d["value_heads"] // d["key_heads"]) > 1:
        q, k = q.repeat_interleave(times, 2), k.repeat_interleave(times, 2)
    return q, k, v, g, beta.sigmoid()


def rule_row_by_row(q, k, v, g, beta, state):
    """Computes the rule's equations in the type of its inputs."""
    unit = lambda y: y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6)
    q, k, out = unit(q) * q.shape[-1] ** -0.5, unit(k), []
    for i in range(q.shape[1]):
        state = state * g[:, i, :, None, None].exp()
        error = v[:, i] - (state * k[:, i, :, :, None]).sum(-2)
        state = state + k[:, i, :, :, None] * (beta[:, i, :, None] * error)[:, :, None, :]
        out.append((state * q[:, i, :, :, None]).sum(-2))
    return torch.stack(out, 1)


class GatedDeltaRule(Operator):
    def __init__(self, d):
        from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule as chunked

        self.d, rows, width = d, d["sequences"] * d["length"], d["value_heads"] * d["head_dim"]

        def work(*given):
            q, k, v, g, beta = rule_terms(d, d["sequences"], *given)
            return chunked(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0].reshape(rows, width)

        super().__init__(work, rule_inputs(d, rows), 4 * d["backward"], uniform(5, 1, rows, width, dtype=real(d)))
        self.flags = {"function": "torch_chunk_gated_delta_rule of transformers"}

    def check(self):
        """Computes sequence by sequence, because the rule row by row keeps the states of all rows."""
        d, (x, ba, *heads) = self.d, self.inputs
        heads = [y.detach().double().requires_grad_(bool(self.leaves)) for y in heads]
        errors = []
        for i in range(d["sequences"]):
            rows = slice(i * d["length"], (i + 1) * d["length"])
            wide = [y[rows].detach().double().requires_grad_(bool(self.leaves)) for y in (x, ba)]
            terms = rule_terms(d, 1, *wide, *heads)
            want = rule_row_by_row(*terms, terms[0].new_zeros(1, d["value_heads"], d["head_dim"], d["head_dim"])).reshape(d["length"], -1)
            errors.append(worst(self.out[rows].detach(), want.detach()))
            if self.leaves:
                want.backward(self.douts[0][rows].double())
                errors += [worst(got.grad[rows], y.grad) for got, y in zip((x, ba), wide)]
        if self.leaves:
            errors += [worst(got.grad, y.grad) for got, y in zip(self.inputs[2:], heads)]
        return max(errors)


def gated_delta_step(d):
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule as recurrent

    rows, hd = d["sequences"], d["head_dim"]
    states = uniform(6, 1, rows, d["value_heads"], hd, hd)

    def work(*given):
        q, k, v, g, beta = rule_terms(d, rows, *given[:4])
        return recurrent(q, k, v, g=g, beta=beta, initial_state=given[4], output_final_state=True, use_qk_l2norm_in_kernel=True)[0]

    operator = Operator(work, [*rule_inputs(d, rows), states])
    operator.plain = lambda *given: rule_row_by_row(*rule_terms(d, rows, *given[:4]), given[4])
    operator.flags = {"function": "torch_recurrent_gated_delta_rule of transformers"}
    return operator


def linear(d):
    return Operator(F.linear, [uniform(1, 1, d["rows"], d["in"], dtype=real(d)), uniform(2, 1, d["out"], d["in"], dtype=real(d))])


def trained_linear(d):
    n, k, m, t = d["rows"], d["in"], d["out"], real(d)
    return Operator(F.linear, [uniform(1, 1, n, k, dtype=t), uniform(2, 1, m, k, dtype=t)], 2, uniform(3, 1, n, m, dtype=t))


class Sample(Operator):
    def __init__(self, d):
        def draw(logits):
            lp = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
            token = torch.multinomial(lp.exp(), 1)
            return token, lp.gather(1, token)

        super().__init__(draw, [uniform(1, 4, d["rows"], d["vocab"], dtype=real(d))])

    def check(self):
        token, logp = self.out
        return worst(logp, torch.log_softmax(self.inputs[0].double(), -1).gather(1, token))


CASES = {
    "group_advantage": Advantage, "token_logprob": LogProb, "policy_loss_from_logits": PolicyLoss, "linear_policy_loss": LinearPolicyLoss,
    "rms_norm": rms_norm, "add_rms_norm": add_rms_norm, "swiglu": swiglu, "heads": heads, "attention_packed": attention, "decode_attention": decode_attention,
    "gated_delta_rule": GatedDeltaRule, "gated_delta_step": gated_delta_step,
    "linear": linear, "trained_linear": trained_linear, "sample": Sample,
}


def prepare(case, provider):
    d = case["dims"]
    if provider == "torch-chunked":
        work = ChunkedLinearPolicyLoss(d)
    else:
        work = AdamW(d, provider) if case["name"] == "adamw" else CASES[case["name"]](d)
    work.version = torch.__version__
    work.settings = {"device": inputs.device, "threads": torch.get_num_threads(), "python": "eager", **getattr(work, "flags", {})}
    if provider == "torch-compile":
        work.compile()
        work.settings["python"] = "torch.compile, static shapes"
    elif provider not in ("torch-eager", "torch-fused", "torch-chunked"):
        raise ValueError(f"no provider {provider!r}")
    return work
