#!/usr/bin/env python3
"""first.py LIBRARY cuda|cpu OUT.json [NAME...]: every hot kernel of a library of CUDA kernels, in one process.

Each case compares a kernel with float64, then times it together with PyTorch's eager operators. The floor is the time to copy the
bytes that the kernel moves. Outputs are NaN before a kernel writes them. A case is printed, and OUT.json written, as soon as it ends. The
other cases run although one fails. With `cpu` the library is libmgrpo_kernels_emulated.so, and shapes are tiny.
Only cases whose name contains one of the NAMEs are run. The status is 1 if a case is wrong or failed.
"""
import ctypes
import json
import math
import sys
import time

import torch
import torch.nn.functional as F

INT, DOUBLE, FLOAT, POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_float, ctypes.c_void_p
BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32
DTYPE = {F32: 6, BF16: 15}  # kernels/include/mgrpo/dtype.h
SWIGLU = 0  # kernels/include/mgrpo/glu.h
EPS = 1e-6


def structure(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


# The structures of kernels/include/mgrpo, field by field.
Heads = structure("Heads", heads=INT, kv_heads=INT, hd=INT, q_norm=POINTER, k_norm=POINTER, whole=ctypes.c_int32, offset=FLOAT, eps=DOUBLE,
                  cos=POINTER, sin=POINTER, rotary=INT, max_pos=INT, pos=POINTER)
Pages = structure("Pages", table=POINTER, sequences=INT, width=INT, blocks=INT, kv_heads=INT, block=INT, hd=INT)
Sampling = structure("Sampling", temperature=DOUBLE, top_p=DOUBLE, min_p=DOUBLE, top_k=ctypes.c_int32, key=ctypes.c_uint32 * 2,
                     position=ctypes.c_uint64)
AdamW = structure("AdamW", lr=DOUBLE, beta1=DOUBLE, beta2=DOUBLE, eps=DOUBLE, weight_decay=DOUBLE, clip=DOUBLE, step=INT)
Part = structure("Part", begin=INT, n=INT, r=INT, scale=DOUBLE)
Lora = structure("Lora", values=POINTER, parts=POINTER, count=INT)


def address(tensor):
    return POINTER(tensor.data_ptr())


def error(got, want):
    """||got - want|| / ||want||; infinity where a number is not finite."""
    got, want = got.double(), want.double()
    if not torch.isfinite(got).all():
        return math.inf
    return ((got - want).norm() / want.norm().clamp_min(1e-30)).item()


class Bench:
    """The library on one device, and the cases so far."""

    def __init__(self, library, device, out, only):
        self.library, self.device, self.out, self.only = ctypes.CDLL(library), device, out, only
        self.library.mgrpo_cuda_last_error.restype = ctypes.c_char_p
        self.gpu = device == "cuda"
        self.rows, self.copy = [], None
        self.stream = POINTER(torch.cuda.current_stream().cuda_stream if self.gpu else None)
        torch.manual_seed(1)
        if self.gpu:
            self.flushed = torch.empty(512 << 20, dtype=torch.uint8, device=device)
            self.copy = self.copy_rate()

    def copy_rate(self):
        """Bytes a second, read and written, of a copy far larger than the caches."""
        one, other = torch.randint(0, 255, (2, 1 << 30), dtype=torch.uint8, device=self.device)
        rate = 2 * one.numel() / self.seconds(lambda: other.copy_(one))
        print(f"{torch.cuda.get_device_name()}: copy {rate / 1e12:.2f} TB/s", flush=True)
        return rate

    def sizes(self, gpu, tiny):
        return gpu if self.gpu else tiny

    def normal(self, *shape, dtype=BF16):
        return torch.randn(*shape, device=self.device).to(dtype)

    def unwritten(self, *shape, dtype=BF16):
        return torch.full(shape, math.nan if dtype.is_floating_point else -7, device=self.device, dtype=dtype)

    def call(self, name, *arguments):
        status = getattr(self.library, f"mgrpo_{name}_cuda")(*arguments, self.stream)
        if status:
            raise RuntimeError(f"{name}: status {status}, {self.library.mgrpo_cuda_last_error()}")

    def done(self, run):
        """Runs a kernel that prepares a case, also a case that is not run, whose tensors end before the next wait."""
        run()
        self.wait()

    def wait(self):
        if self.gpu:
            torch.cuda.synchronize()
        else:
            self.call("download", None, None, INT(0))

    def seconds(self, run, samples=15):
        """The median time of run on the GPU, each sample with a cold L2."""
        run()
        times = []
        for _ in range(samples):
            self.flushed.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return sorted(times)[samples // 2]

    def case(self, name, size, run, check, eager=None, tolerance=1e-2):
        """run enqueues the kernel, which has to move `size` bytes; check returns its error after a first run."""
        if self.only and not any(part in name for part in self.only):
            return
        start = time.perf_counter()
        try:
            run()
            self.wait()
            worst = check()
            row = {"name": name, "error": worst, "ok": worst <= tolerance, "bytes": size}
            if self.gpu:
                taken, floor = self.seconds(run), size / self.copy
                row |= {"us": taken * 1e6, "floor_us": floor * 1e6, "x_floor": taken / floor}
                if eager:
                    row["eager_us"] = self.seconds(eager) * 1e6
        except Exception as e:  # the other cases still run
            row = {"name": name, "ok": False, "failed": f"{type(e).__name__}: {e}"[:300]}
        row["seconds"] = time.perf_counter() - start
        self.rows.append(row)
        print(line(row), flush=True)
        self.write()

    def write(self):
        name = torch.cuda.get_device_name() if self.gpu else "emulated"
        with open(self.out, "w", encoding="utf-8") as file:
            json.dump({"device": name, "torch": torch.__version__, "copy_bytes_per_second": self.copy, "cases": self.rows}, file, indent=1)


def line(row):
    if "failed" in row:
        return f"{row['name']:48} FAILED {row['failed']}"
    text = f"{row['name']:48} error {row['error']:8.1e}"
    if "us" in row:
        text += f" {row['us']:9.1f} us {row['x_floor']:6.2f} x floor"
    if "eager_us" in row:
        text += f"  eager {row['eager_us']:9.1f} us, {row['eager_us'] / row['us']:5.2f} x"
    return text + ("" if row["ok"] else "  WRONG")


# --- layers


def normalised(x, w):
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w.double()


def norms(b):
    for n, d in b.sizes([(8192, 1024), (8192, 2048), (8192, 4096), (128, 2048)], [(5, 72)]):
        x, residual, dy, w = b.normal(n, d), b.normal(n, d), b.normal(n, d), b.normal(d)
        total, y, inverse = b.unwritten(n, d), b.unwritten(n, d), b.unwritten(n, dtype=F32)
        forward = lambda: b.call("add_rms_norm", address(x), address(residual), address(w), 15, FLOAT(0), DOUBLE(EPS), address(total), address(y),
                                 address(inverse), INT(n), INT(d))
        b.case(f"add_rms_norm {n} x {d}", 8 * n * d, forward,
               lambda: max(error(total, x.double() + residual.double()), error(y, normalised(total, w))), lambda: F.rms_norm(x + residual, (d,), w))
        b.done(forward)
        dx, dw = b.unwritten(n, d), torch.zeros(d, device=b.device)

        def backward():
            dw.zero_()
            b.call("rms_norm_bwd", address(dy), address(total), address(w), address(inverse), address(residual), 15, FLOAT(0), address(dx),
                   address(dw), INT(n), INT(d))

        def check():
            X, W = total.double().requires_grad_(), w.double().requires_grad_()
            normalised(X, W).backward(dy.double())
            return max(error(dx, X.grad + residual.double()), error(dw, W.grad))

        b.case(f"rms_norm_bwd {n} x {d}", 8 * n * d, backward, check, tolerance=2e-2)


def gates(b):
    for n, f in b.sizes([(8192, 3072), (8192, 11008), (128, 6144)], [(5, 40)]):
        gate_up, dy = b.normal(n, 2 * f), b.normal(n, f)
        y, gradient = b.unwritten(n, f), b.unwritten(n, 2 * f)
        silu = lambda x: F.silu(x[:, :f]) * x[:, f:]
        b.case(f"swiglu {n} x {f}", 6 * n * f, lambda: b.call("glu", SWIGLU, address(gate_up), 15, address(y), INT(n), INT(f)),
               lambda: error(y, silu(gate_up.double())), lambda: silu(gate_up))

        def check():
            X = gate_up.double().requires_grad_()
            silu(X).backward(dy.double())
            return error(gradient, X.grad)

        b.case(f"swiglu_bwd {n} x {f}", 10 * n * f,
               lambda: b.call("glu_bwd", SWIGLU, address(dy), address(gate_up), 15, address(gradient), INT(n), INT(f)), check)


def rotated(x, cos, sin):
    a, c = x.chunk(2, -1)
    return torch.cat([a * cos - c * sin, c * cos + a * sin], -1)


def heads(b):
    for n, h, kv, hd in b.sizes([(4096, 16, 8, 128), (4096, 32, 8, 128)], [(5, 4, 2, 16)]):
        width, limit = (h + 2 * kv) * hd, 512
        qkv, q_norm, k_norm = b.normal(n, width), b.normal(hd), b.normal(hd)
        pos = (torch.arange(n, device=b.device) % limit).int()
        angle = torch.outer(torch.arange(limit, device=b.device), 1e4 ** (-torch.arange(hd // 2, device=b.device) / (hd // 2)))
        cos, sin = angle.cos().contiguous(), angle.sin().contiguous()
        how = Heads(h, kv, hd, q_norm.data_ptr(), k_norm.data_ptr(), 0, 0.0, EPS, cos.data_ptr(), sin.data_ptr(), hd, limit, pos.data_ptr())
        q, k, v = b.unwritten(n, h, hd), b.unwritten(n, kv, hd), b.unwritten(n, kv, hd)
        inv_q, inv_k = b.unwritten(n, h, dtype=F32), b.unwritten(n, kv, dtype=F32)

        def reference(x, a, c):
            x, angles = x.view(n, h + 2 * kv, hd), [t.double()[pos.long()].unsqueeze(1) for t in (cos, sin)]
            return rotated(normalised(x[:, :h], a), *angles), rotated(normalised(x[:, h:h + kv], c), *angles), x[:, h + kv:]

        split = lambda: b.call("split_heads", address(qkv), how, 15, address(q), address(k), address(v), address(inv_q), address(inv_k), INT(n))
        b.case(f"split_heads {n} x {h}/{kv} x {hd}, norms", 4 * n * width, split,
               lambda: max(map(error, (q, k, v), reference(qkv.double(), q_norm, k_norm))))
        b.done(split)
        dq, dk, dv, dqkv = b.normal(n, h, hd), b.normal(n, kv, hd), b.normal(n, kv, hd), b.unwritten(n, width)
        dw_q, dw_k = (torch.zeros(hd, device=b.device) for _ in "qk")

        def backward(weights):
            for dw in (dw_q, dw_k):
                dw.zero_()
            b.call("split_heads_bwd", address(dq), address(dk), address(dv), address(qkv), how, address(inv_q), address(inv_k), 15, address(dqkv),
                   *((address(dw_q), address(dw_k)) if weights else (None, None)), INT(n))

        def gradients():
            leaves = [t.double().requires_grad_() for t in (qkv, q_norm, k_norm)]
            torch.autograd.backward(reference(*leaves), [g.double() for g in (dq, dk, dv)])
            return [t.grad for t in leaves]

        b.case(f"split_heads_bwd {n} x {h}/{kv} x {hd}, with dw", 6 * n * width, lambda: backward(True),
               lambda: max(map(error, (dqkv, dw_q, dw_k), gradients())), tolerance=3e-2)
        b.case(f"split_heads_bwd {n} x {h}/{kv} x {hd}, no dw", 6 * n * width, lambda: backward(False),
               lambda: error(dqkv, gradients()[0]), tolerance=3e-2)


# --- decoding


def attention(b):
    shapes = [(64, 224, 16, 8, 128), (128, 512, 16, 8, 128), (128, 2048, 16, 8, 128), (8, 4096, 32, 8, 128), (64, 4096, 32, 8, 128),
              (64, 1024, 16, 2, 256)]
    for n, length, h, kv, hd in b.sizes(shapes, [(3, 37, 4, 2, 16)]):
        block = 16
        width = -(-length // block)
        blocks = n * width
        keys, values = b.normal(blocks, kv, block, hd), b.normal(blocks, kv, block, hd)
        table = torch.randperm(blocks, device=b.device).int().view(n, width).contiguous()
        sequence, lengths = torch.arange(n, device=b.device, dtype=I32), torch.full((n,), length, device=b.device, dtype=I32)
        q, out = b.normal(n, h, hd), b.unwritten(n, h, hd)
        pages = Pages(table.data_ptr(), n, width, blocks, kv, block, hd)
        checked = min(n, 4)

        def gathered(cache, rows):
            return cache[table[:rows].long()].permute(0, 2, 1, 3, 4).reshape(rows, kv, width * block, hd)[:, :, :length]

        def check():
            K, V = (gathered(cache, checked).double() for cache in (keys, values))
            weights = (q[:checked].double().view(checked, kv, h // kv, hd) @ K.transpose(-1, -2) / math.sqrt(hd)).softmax(-1)
            return error(out[:checked], (weights @ V).reshape(checked, h, hd))

        b.case(f"attention_cached {n} x {length} keys, {h}/{kv} x {hd}", 4 * n * length * kv * hd,
               lambda: b.call("attention_cached", address(q), address(keys), address(values), pages, address(sequence), address(lengths), None, 15,
                              address(out), INT(n), INT(h), FLOAT(1 / math.sqrt(hd)), INT(0)), check)

        qkv, pos, weight = b.normal(n, (h + 2 * kv) * hd), torch.full((n,), length - 1, device=b.device, dtype=I32), b.normal(hd)
        cos, sin = torch.ones(length, hd // 2, device=b.device), torch.zeros(length, hd // 2, device=b.device)
        how = Heads(h, kv, hd, weight.data_ptr(), weight.data_ptr(), 0, 0.0, EPS, cos.data_ptr(), sin.data_ptr(), hd, length, pos.data_ptr())

        def placed():
            x = qkv.view(n, h + 2 * kv, hd)
            last = [gathered(cache, n)[:, :, -1] for cache in (keys, values)]
            want = normalised(x[:, :h], weight), normalised(x[:, h:h + kv], weight), x[:, h + kv:]
            return max(map(error, (q, *last), want))

        b.case(f"cache_heads {n} x {h}/{kv} x {hd}", 4 * qkv.numel(),
               lambda: b.call("cache_heads", address(qkv), how, 15, address(q), address(keys), address(values), pages, address(sequence), INT(n)),
               placed)


def prompts(b):
    for sequences, tokens, h, kv, hd in b.sizes([(16, 256, 16, 8, 128)], [(3, 5, 4, 2, 16)]):
        n, block, width = sequences * tokens, 16, -(-tokens // 16)
        blocks = sequences * width
        qkv, weight, q = b.normal(n, (h + 2 * kv) * hd), b.normal(hd), b.unwritten(n, h, hd)
        keys, values = b.unwritten(blocks, kv, block, hd), b.unwritten(blocks, kv, block, hd)
        table = torch.randperm(blocks, device=b.device).int().view(sequences, width).contiguous()
        sequence = torch.arange(sequences, device=b.device, dtype=I32).repeat_interleave(tokens)
        pos = torch.arange(tokens, device=b.device, dtype=I32).repeat(sequences)
        cos, sin = torch.ones(tokens, hd // 2, device=b.device), torch.zeros(tokens, hd // 2, device=b.device)
        how = Heads(h, kv, hd, weight.data_ptr(), weight.data_ptr(), 0, 0.0, EPS, cos.data_ptr(), sin.data_ptr(), hd, tokens, pos.data_ptr())
        pages = Pages(table.data_ptr(), sequences, width, blocks, kv, block, hd)

        def placed():
            x = qkv.view(n, h + 2 * kv, hd)
            there = [cache[table[sequence.long(), (pos // block).long()].long(), :, (pos % block).long()] for cache in (keys, values)]
            return max(map(error, (q, *there), (normalised(x[:, :h], weight), normalised(x[:, h:h + kv], weight), x[:, h + kv:])))

        b.case(f"cache_heads {n} x {h}/{kv} x {hd}, prompts", 4 * qkv.numel(),
               lambda: b.call("cache_heads", address(qkv), how, 15, address(q), address(keys), address(values), pages, address(sequence), INT(n)),
               placed)


def sampling(b):
    for n, vocab in b.sizes([(8, 151936), (128, 151936)], [(3, 1003)]):
        logits, token, logp = b.normal(n, vocab, dtype=F32), b.unwritten(n, dtype=I32), b.unwritten(n, dtype=F32)
        bad = INT(-1)
        for name, top_p in (("plain", 1.0), ("top_p 0.95", 0.95)):
            one = Sampling(1.0, top_p, 0.0, 0, (ctypes.c_uint32 * 2)(1, 2), 3)
            each = (Sampling * n)(*[one] * n)
            b.case(f"sample {n} x {vocab} {name}", 4 * n * vocab,
                   lambda: b.call("sample", address(logits), 6, INT(n), INT(vocab), INT(vocab), each, address(token), address(logp), None,
                                  ctypes.byref(bad)),
                   lambda: error(logp, logits.double().log_softmax(-1).gather(1, token[:, None].long())[:, 0]),
                   lambda: torch.multinomial(logits.softmax(-1), 1), tolerance=1e-5)


def adapters(b):
    for n, k, m, r in b.sizes([(128, 2048, 12288, 16), (8, 2048, 12288, 16)], [(3, 40, 24, 4)]):
        values, x, y = b.normal(r * (k + m), dtype=F32) * 0.05, b.normal(n, k), b.normal(n, m)
        A, B, before, first = values[:r * k].view(r, k), values[r * k:].view(m, r), y.clone(), []
        parts = (Part * 1)(Part(0, m, r, 2.0))
        lora = Lora(values.data_ptr(), ctypes.cast(parts, POINTER), 1)

        def add():
            b.call("lora_add", ctypes.byref(lora), INT(1), None, address(x), 15, address(y), INT(n), INT(k), INT(m))
            if not first:
                b.wait()
                first.append(y.clone())

        b.case(f"lora_add {n} x {k} x {m}, r {r}", 4 * values.numel() + 4 * n * m, add,
               lambda: error(first[0], before.double() + 2 * (x.double() @ A.double().t()) @ B.double().t()),
               lambda: torch.addmm(y, x @ A.t().to(BF16), B.t().to(BF16)))


def experts(b):
    for tokens, k, count, wide, narrow in b.sizes([(16384, 8, 128, 0, 0), (64, 8, 128, 2048, 1536)], [(5, 2, 4, 16, 8)]):
        entries = tokens * k
        chosen = torch.rand(tokens, count, device=b.device).topk(k).indices.int().contiguous().flatten()
        first, source, place = b.unwritten(count + 1, dtype=I32), b.unwritten(entries, dtype=I32), b.unwritten(entries, dtype=I32)
        order = chosen.sort(stable=True)

        def check():
            wrong = not torch.equal(source, (order.indices // k).int()) and not torch.equal(chosen[source.long()], order.values)
            return float(wrong or first[-1].item() != entries)

        sort = lambda: b.call("moe_sort", address(chosen), address(first), address(source), address(place), INT(entries), INT(count))
        b.case(f"moe_sort {entries} entries, {count} experts", 12 * entries, sort, check, lambda: chosen.sort(stable=True))
        if wide:
            b.done(sort)
            x, w, y = b.normal(entries, wide), b.normal(count, narrow, wide), b.unwritten(entries, narrow)
            rows = min(entries, 9)
            b.case(f"moe_linear {entries} x {wide} x {narrow}", 2 * w.numel(),
                   lambda: b.call("moe_linear", address(x), address(w), address(first), 15, address(y), INT(entries), INT(count), INT(wide), INT(narrow)),
                   lambda: error(y[:rows], torch.einsum("ni,noi->no", x[:rows].double(), w[order.values[:rows].long()].double())))


# --- training


def log_probs(b):
    for n, vocab, dtype in b.sizes([(4096, 151936, BF16), (512, 151936, F32), (2048, 49152, F32)], [(5, 1003, F32)]):
        logits, targets = b.normal(n, vocab, dtype=dtype), torch.randint(0, vocab, (n,), device=b.device, dtype=I32)
        logp, entropy, bad = b.unwritten(n, dtype=F32), b.unwritten(n, dtype=F32), INT(-1)
        size, checked = logits.element_size() * n * vocab, min(n, 8)
        shape = (address(logits), DTYPE[dtype], INT(n), INT(vocab), INT(vocab), address(targets), None, DOUBLE(1))
        some, picked = logits[:checked].double(), targets[:checked, None].long()

        def check():
            p = some.log_softmax(-1)
            return max(error(logp[:checked], p.gather(1, picked)[:, 0]), error(entropy[:checked], -(p.exp() * p).sum(-1)))

        label = f"{n} x {vocab} {str(dtype).removeprefix('torch.')}"
        b.case(f"token_logprob {label}", size, lambda: b.call("token_logprob", *shape, address(logp), address(entropy), ctypes.byref(bad)), check,
               (lambda: torch.log_softmax(logits, -1, dtype=F32)) if n < 4096 else None, tolerance=1e-5)
        gradient, none, first = b.normal(n, dtype=F32), torch.zeros(n, device=b.device), []

        def backward():  # in place
            b.call("token_logprob_bwd", *shape, address(gradient), address(none), ctypes.byref(bad))
            if not first:
                b.wait()
                first.append(logits[:checked].clone())

        def gradient_error():
            want = -some.softmax(-1)
            want.scatter_add_(1, picked, torch.ones_like(picked, dtype=want.dtype))
            return error(first[0], want * gradient[:checked, None].double())

        b.case(f"token_logprob_bwd {label}", 2 * size, backward, gradient_error)


def optimizer(b):
    n = b.sizes(134_515_008, 1003)
    w, g, half = b.normal(n, dtype=F32), b.normal(n, dtype=F32), b.unwritten(n)
    m, v = torch.zeros(n, device=b.device), torch.zeros(n, device=b.device)
    config, before, first = AdamW(1e-3, 0.9, 0.98, 1e-8, 0.1, 1.0, 1), w[:1000].double(), []

    def step():
        b.call("adamw", address(w), address(m), address(v), address(g), address(half), INT(n), DOUBLE(2), ctypes.byref(config))
        if not first:
            b.wait()
            first.append((w[:1000].clone(), half[:1000].clone()))

    def check():
        clipped = g[:1000].double() / (2 + 1e-6)
        want = before * (1 - 1e-4) - 1e-3 * clipped / (clipped.abs() + 1e-8)
        return max(error(first[0][0], want), error(first[0][1], first[0][0].to(BF16)))

    b.case(f"adamw {n}", 30 * n, step, check, tolerance=1e-5)
    norm = DOUBLE(0)
    b.case(f"grad_norm {n}", 4 * n, lambda: b.call("grad_norm", address(g), INT(n), ctypes.byref(norm)),
           lambda: abs(norm.value / g.double().norm().item() - 1), lambda: g.norm(), tolerance=1e-6)


def main():
    b = Bench(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
    for group in (attention, prompts, heads, log_probs, optimizer, norms, gates, sampling, adapters, experts):
        group(b)
        if b.gpu:
            torch.cuda.empty_cache()
    wrong = [row["name"] for row in b.rows if not row["ok"]]
    print(f"{len(b.rows)} cases, {len(wrong)} wrong{': ' if wrong else ''}{', '.join(wrong)}")
    sys.exit(bool(wrong) or not b.rows)


if __name__ == "__main__":
    main()
