"""Log-probs of sampled tokens and their entropies in PyTorch, by mgrpo's kernels: the logits are the only tensor of rows x vocabulary.

logprob(logits, targets, temperature) is differentiable in both results. On a CUDA tensor the CUDA kernels run, in PyTorch's stream.
"""
import ctypes
import os
import pathlib
import sys

import torch

FOLDER = pathlib.Path(os.environ.get("MGRPO_LIB", pathlib.Path(__file__).resolve().parents[2] / "build/lib"))
DTYPES = {torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}  # mgrpo/dtype.h
_libraries = {}


def _call(name, tensor, *arguments):
    """Calls mgrpo_NAME_cpu or _cuda, depending on the tensor's device."""
    backend = tensor.device.type
    if backend not in _libraries:
        _libraries[backend] = ctypes.CDLL(str(FOLDER / ("libmgrpo_kernels.so" if backend == "cpu" else "libmgrpo_kernels_cuda.so")))
    library = _libraries[backend]
    if backend == "cuda":
        arguments += (ctypes.c_void_p(torch.cuda.current_stream(tensor.device).cuda_stream),)
    status = getattr(library, f"mgrpo_{name}_{backend}")(*arguments)
    if status != 0:
        describe = library.mgrpo_status_string
        describe.restype = ctypes.c_char_p
        raise ValueError(f"mgrpo_{name}_{backend}: {describe(status).decode()}")


def _pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None)


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, temperature):
        rows, vocab = logits.shape
        logits, targets = logits.contiguous(), targets.to(torch.int32).contiguous()
        out = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logp, entropy = (torch.empty(rows, dtype=out, device=logits.device) for _ in range(2))
        bad = ctypes.c_int64()
        _call("token_logprob", logits, _pointer(logits), ctypes.c_int32(DTYPES[logits.dtype]), ctypes.c_int64(rows), ctypes.c_int64(vocab),
              ctypes.c_int64(vocab), _pointer(targets), None, ctypes.c_double(temperature), _pointer(logp), _pointer(entropy), ctypes.byref(bad))
        ctx.save_for_backward(logits, targets)
        ctx.temperature = temperature
        return logp, entropy

    @staticmethod
    def backward(ctx, dlogp, dentropy):
        logits, targets = ctx.saved_tensors
        gradient = logits.clone()  # the kernel overwrites logits by their gradient, and the caller may still need the logits
        dlogp, dentropy = dlogp.contiguous(), dentropy.contiguous()  # named, so that they live while the kernel uses their pointers
        rows, vocab = logits.shape
        bad = ctypes.c_int64()
        _call("token_logprob_bwd", gradient, _pointer(gradient), ctypes.c_int32(DTYPES[gradient.dtype]), ctypes.c_int64(rows), ctypes.c_int64(vocab),
              ctypes.c_int64(vocab), _pointer(targets), None, ctypes.c_double(ctx.temperature), _pointer(dlogp),
              _pointer(dentropy), ctypes.byref(bad))
        return gradient, None, None


def logprob(logits, targets, temperature=1.0):
    """Returns log-probs and entropies [rows] of targets [rows] under softmax(logits / temperature), logits [rows, vocabulary]."""
    return _LogProb.apply(logits, targets, temperature)


def main():
    torch.manual_seed(0)
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    logits = torch.randn(64, 5000, dtype=torch.float64, device=device).mul(3).requires_grad_()
    targets = torch.randint(5000, (64,), device=device)
    logp, entropy = logprob(logits, targets, 0.7)
    (logp.sum() + 0.1 * entropy.sum()).backward()
    kernels, logits.grad = logits.grad, None

    distribution = torch.log_softmax(logits / 0.7, -1)
    expected = distribution.gather(1, targets[:, None])[:, 0]
    expected_entropy = -(distribution.exp() * distribution).sum(-1)
    (expected.sum() + 0.1 * expected_entropy.sum()).backward()
    torch.testing.assert_close(logp, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernels, logits.grad, rtol=1e-10, atol=1e-12)
    print("log-probs, entropies and gradients equal PyTorch's")


if __name__ == "__main__":
    main()
