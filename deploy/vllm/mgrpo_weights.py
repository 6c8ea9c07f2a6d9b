"""Weights of a training run for a vLLM server: --worker-extension-cls mgrpo_weights.Weights

vLLM adds the methods of this class to each of its workers, and the trainer calls them through /collective_rpc. A failure
is a reply and not an exception, because vLLM's answer to a worker's exception does not contain it.
"""

import glob
import os

from safetensors import safe_open
from vllm.platforms import current_platform

if current_platform.is_cpu():
    # On a CPU vLLM packs matrices when it loads a model and computes with the packed copies, which load_weights does not renew. Packing
    # must be off before the model is loaded; vLLM imports this file early enough.
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False


def _tensors(folder):
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "*.safetensors")))
    if not files:
        raise FileNotFoundError(f"no *.safetensors in {folder}: the server must see the trainer's engine.weights.path under the same path")
    for file in files:
        with safe_open(file, framework="pt") as f:
            for name in f.keys():
                yield name, f.get_tensor(name)


def _check_experts(model):
    """Raises an error if vLLM has repacked the weights of experts, because load_weights would write over the packed ones."""
    for module in model.modules():
        backend = getattr(getattr(module, "quant_method", None), "unquantized_backend", None)
        if backend is not None and "TRITON" not in backend.name:
            raise ValueError(f"vLLM has repacked the experts' weights (backend {backend.name}), so they cannot be renewed: on a GPU start it with "
                             "--moe-backend triton; on a CPU it cannot take the weights of mixtures")


class Weights:
    def mgrpo_load(self, folder: str, stamp: str) -> dict:
        """Copies the tensors of a folder into the model. From here on its stamp is the folder's."""
        self.mgrpo_stamp = ""
        try:
            model = self.model_runner.model
            _check_experts(model)
            loaded = model.load_weights(_tensors(folder))
            missing = set(dict(model.named_parameters())) - set(loaded or ())
            if loaded is not None and missing:
                raise ValueError(f"{folder} has no weights for {sorted(missing)[:3]}")
        except Exception as e:
            return {"error": f"{type(e).__name__}: {e}"}
        self.mgrpo_stamp = stamp
        return {"stamp": stamp}

    def mgrpo_version(self) -> dict:
        """Returns the stamp of the weights that were loaded last, or an empty string if none were loaded."""
        return {"stamp": getattr(self, "mgrpo_stamp", "")}
