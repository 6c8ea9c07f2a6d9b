#!/usr/bin/env bash
# served.sh ENGINES: vLLM reads folders that mgrpo saved. bench/engines/setup.sh put vLLM in the
# folder ENGINES. Some folders are models with vision parts, after training:
# bench/interop/run.sh makes them, and runs first if they are absent. The others are golden
# models whose heads have a size that vLLM accepts on a CPU (heads.py). Equal families are
# recorded in bench/results/models.json. ENGINES/saved.log has vLLM's messages.
set -euo pipefail
cd "$(dirname "$0")/../.."
run=$PWD/build/interop-run heads=$PWD/build/interop-heads
bench/interop/setup.sh
[ -d "$run/goldens" ] || ONE_BASE='' bench/interop/run.sh
rm -rf "$heads"
mkdir -p "$heads/saved"
echo 'interop: golden models with heads that vLLM takes'
PYTHONPATH=build/interop TORCH_USE_RTLD_GLOBAL=1 HF_HUB_OFFLINE=1 python3 -P -S bench/interop/heads.py "$heads/families"
MGRPO_GOLDENS=$heads MGRPO_SAVED=$heads/saved go test -count=1 ./trainer/model/weights -run '^TestGoldenRoundTrip$'
folders=()
for saved in whole/planner visual/planner visual/researcher; do
  folders+=("$(dirname "$(find "$run/${saved%/*}" -path "*${saved#*/}/config.json" | sort | tail -1)")")
done
# Without TorchDynamo, because it would compile small functions for minutes.
MGRPO_ENGINES=$1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 \
  OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=WARNING TORCHDYNAMO_DISABLE=1 "$1/vllm/bin/python" bench/interop/served.py bin/mgrpo "${folders[@]}" "$heads"/saved/*
