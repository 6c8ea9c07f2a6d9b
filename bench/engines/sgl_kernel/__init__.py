"""Replaces the kernels of SGLang, because the registry only has a build for CUDA. SGLang imports their names even if it computes with
PyTorch; a call of one raises an error."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return absent
