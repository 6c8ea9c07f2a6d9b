#!/usr/bin/env bash
# torchscript.sh GOLDEN OUT: makes the TorchScript policy of the tests in OUT from a golden model's folder, as in
# torchscript.sh testdata/models/llama-tied testdata/torchscript/llama-tied. mgrpo is not used.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/interop/setup.sh
PYTHONPATH=build/interop PYTHONDONTWRITEBYTECODE=1 TORCH_USE_RTLD_GLOBAL=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 python3 -P -S bench/goldens/torchscript.py "$@"
