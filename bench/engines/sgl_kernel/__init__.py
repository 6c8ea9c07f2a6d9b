"""Stands in for the kernels of SGLang, of which the registry has a build for CUDA alone. SGLang imports their names also
where it computes with PyTorch; whoever calls one is told that it is not there."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return absent
