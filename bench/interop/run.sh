#!/usr/bin/env bash
# run.sh: trains the quickstart team for one small step, its researcher a mixture of experts, and then adapters of both agents on
# the planner's model; lets transformers and peft read what came out: the folders of models and adapters. FAMILIES
# names families of models (docs/models.md) of which the team is trained as well, INTEROP_MODELS further folders.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/interop/setup.sh
run=$PWD/build/interop-run

rm -rf "$run"
mapfile -t small < <(tr ' ' '\n' <.ci/quickstart-small)
mixture='{family: qwen3_moe, width: 96, layers: 2, heads: 4, kv_heads: 2, head_dim: 24, ffn: 256, experts: 8, experts_per_token: 3, expert_ffn: 48, max_positions: 256}'
bin/mgrpo train -c examples/quickstart/team.yaml --set run.dir="$run" --set agents.researcher.model="$mixture" "${small[@]}" >build/interop.log ||
  { cat build/interop.log >&2; exit 1; }
base=$(dirname "$(find "$run" -path '*planner/config.json' | sort | tail -1)")
for family in ${FAMILIES:-}; do
  bin/mgrpo train -c examples/quickstart/team.yaml --set run.dir="$run/$family" --set agents.planner.model.family="$family" \
    --set agents.researcher.model.family="$family" "${small[@]}" >>build/interop.log || { cat build/interop.log >&2; exit 1; }
done
bin/mgrpo train -c examples/quickstart/team.yaml --set run.dir="$run/adapters" "${small[@]}" \
  --set agents.planner.model="$base" --set agents.planner.lora.r=4 --set agents.planner.lora.alpha=8 \
  --set agents.researcher.model="$base" --set agents.researcher.lora.r=3 --set agents.researcher.lora.rslora=true \
  --set 'agents.researcher.lora.targets=.*\.(q|v|down)_proj' >>build/interop.log || { cat build/interop.log >&2; exit 1; }
mapfile -t folders < <(find "$run" \( -name config.json -o -name adapter_config.json \) -printf '%h\n' | sort)
[ ${#folders[@]} -ge 2 ] || { echo "interop: fewer than two folders under $run" >&2; exit 1; }
# -P and -S: nothing of the current folder and of the machine's packages is imported. TORCH_USE_RTLD_GLOBAL: libraries of
# CUDA are not looked for.
PYTHONPATH=build/interop TORCH_USE_RTLD_GLOBAL=1 TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 \
  python3 -P -S bench/interop/check.py bin/mgrpo "${folders[@]}" ${INTEROP_MODELS:-}
