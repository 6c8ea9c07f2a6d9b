#!/usr/bin/env bash
# run.sh OUT [CASE ...]: makes golden cases of model families in OUT/CASE, by default all cases of cases.py, with the transformers of
# bench/interop/requirements.txt. mgrpo is not used.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/interop/setup.sh
PYTHONPATH=build/interop:bench/goldens PYTHONDONTWRITEBYTECODE=1 TORCH_USE_RTLD_GLOBAL=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
  python3 -P -S bench/goldens/families.py "$@"
