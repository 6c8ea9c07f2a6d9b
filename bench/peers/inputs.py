"""The inputs of bench/measure/inputs.go, where the formula is: the same numbers, whoever makes them."""
import numpy
import torch

CHUNK = 1 << 22


def _hash(stream, start, stop):
    x = numpy.arange(start, stop, dtype=numpy.uint32)
    x = x * numpy.uint32(0x9E3779B9) + numpy.uint32(stream * 0x85EBCA6B & 0xFFFFFFFF)
    x = (x ^ x >> numpy.uint32(16)) * numpy.uint32(0x7FEB352D)
    x = (x ^ x >> numpy.uint32(15)) * numpy.uint32(0x846CA68B)
    return x ^ x >> numpy.uint32(16)


def _fill(out, f):
    flat = out.view(-1).numpy()
    for start in range(0, flat.size, CHUNK):
        stop = min(start + CHUNK, flat.size)
        flat[start:stop] = f(start, stop)
    return out


def uniform(stream, scale, *shape):
    """float32 in [-scale, scale)."""
    one, scale = numpy.float32(1), numpy.float32(scale)
    return _fill(torch.empty(shape), lambda i, j: scale * ((_hash(stream, i, j) >> numpy.uint32(8)).astype(numpy.float32) * numpy.float32(2**-23) - one))


def index(stream, n, *shape):
    """int64 in [0, n)."""
    return _fill(torch.empty(shape, dtype=torch.int64), lambda i, j: _hash(stream, i, j).astype(numpy.uint64) * numpy.uint64(n) >> numpy.uint64(32))
