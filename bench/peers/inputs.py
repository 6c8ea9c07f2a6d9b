"""The inputs of bench/measure/inputs.go, which has the formula. Both programs make the same numbers."""
import torch

device = "cpu"  # the device of inputs and providers


def _word(x):
    """Returns x modulo 2^32 as an int32."""
    return (x + 2**31) % 2**32 - 2**31


def _folded(x, shift):
    return x ^ (x >> shift & (1 << 32 - shift) - 1)


def _hash(stream, start, stop):
    """Returns the formula's words in int32. Its products are meant to wrap."""
    x = torch.arange(start, stop, device=device).int().mul_(_word(0x9E3779B9)).add_(_word(stream * 0x85EBCA6B))
    x = _folded(x, 16).mul_(_word(0x7FEB352D))
    x = _folded(x, 15).mul_(_word(0x846CA68B))
    return _folded(x, 16)


def _fill(out, f):
    chunk = 1 << (18 if device == "cpu" else 26)
    flat = out.view(-1)
    for start in range(0, flat.numel(), chunk):
        stop = min(start + chunk, flat.numel())
        flat[start:stop] = f(start, stop)
    return out


def uniform(stream, scale, *shape, dtype=torch.float32):
    """Returns numbers in [-scale, scale), rounded to float32."""
    scale = torch.tensor(scale, dtype=torch.float32, device=device)
    value = lambda i, j: (_hash(stream, i, j) >> 8 & 0xFFFFFF).float().mul_(2**-23).sub_(1).mul_(scale)
    return _fill(torch.empty(shape, dtype=dtype, device=device), value)


def index(stream, n, *shape):
    """Returns int64 numbers in [0, n)."""
    return _fill(torch.empty(shape, dtype=torch.int64, device=device), lambda i, j: (_hash(stream, i, j).long() & 0xFFFFFFFF) * n >> 32)
