#!/usr/bin/env bash
# run.sh: trains the quickstart team for one small step, with a mixture of experts as its researcher. Then it trains
# adapters of both agents on the planner's model, models that contain a language model (wrapped.py), whole and as
# adapters, and two adapters on SmolLM2 (examples/one-base, small). The last takes minutes, and ONE_BASE= leaves it
# out. It saves the golden models of testdata. Then transformers and peft read the folders of models and adapters,
# and llama.cpp reads mgrpo's exports of the golden models. FAMILIES names further families (docs/models.md) for the
# team, INTEROP_MODELS further folders. Equal models are recorded in bench/results/models.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/interop/setup.sh
run=$PWD/build/interop-run log=build/interop.log

rm -rf "$run" $log
mapfile -t small < <(tr ' ' '\n' <.ci/quickstart-small)
small+=(--set run.checkpoint_every=2)
# train NAME CONFIG FLAG...: trains in $run/NAME.
train() { .ci/allow-nothing-trained bin/mgrpo train "$2" --set run.dir="$run/$1" "${@:3}" >>$log 2>&1 || { cat $log >&2; exit 1; }; }

mixture='{family: qwen3_moe, width: 96, layers: 2, heads: 4, kv_heads: 2, head_dim: 24, ffn: 256, experts: 8, experts_per_token: 3, expert_ffn: 48, max_positions: 256}'
train team examples/quickstart/team.yaml "${small[@]}" --set agents.researcher.model="$mixture"
for family in ${FAMILIES:-}; do
  train "$family" examples/quickstart/team.yaml "${small[@]}" --set agents.planner.model.family="$family" --set agents.researcher.model.family="$family"
done
base=$(dirname "$(find "$run/team" -path '*planner/config.json' | sort | tail -1)")
train adapters examples/quickstart/team.yaml "${small[@]}" \
  --set agents.planner.model="$base" --set agents.planner.lora.r=4 --set agents.planner.lora.alpha=8 \
  --set agents.researcher.model="$base" --set agents.researcher.lora.r=3 --set agents.researcher.lora.rslora=true \
  --set 'agents.researcher.lora.targets=.*\.(q|v|down)_proj'
# python ARGS: -P and -S exclude imports from the current folder and from the machine's packages. TORCH_USE_RTLD_GLOBAL: torch does not look
# for CUDA's libraries.
python() {
  PYTHONPATH=build/interop TORCH_USE_RTLD_GLOBAL=1 TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 TQDM_DISABLE=1 python3 -P -S "$@"
}
echo 'interop: models of which a language model is a part'
python bench/interop/wrapped.py "$run/wrapped"
for folder in "$run"/wrapped/*; do cp "$base"/tokenizer*.json "$folder"; done
# wrapped NAME PLANNER RESEARCHER FLAG...: trains a team of two such models.
wrapped() { train "$1" examples/quickstart/team.yaml "${small[@]}" --set agents.planner.model="$run/wrapped/$2" --set agents.researcher.model="$run/wrapped/$3" "${@:4}"; }
wrapped whole gemma3 mistral3
wrapped visual qwen2_5_vl smolvlm
wrapped shared gemma4 gemma4
wrapped hybrid lfm2_vl lfm2_vl
wrapped recurrent qwen3_5 qwen3_5
wrapped text gemma3 mistral3 --set run.save=text
wrapped wrapped-adapters gemma3 mistral3 --set agents.planner.lora.r=4 --set agents.researcher.lora.r=3
wrapped shared-adapters gemma4 gemma4 --set agents.planner.lora.r=4 --set agents.researcher.lora.r=3
wrapped recurrent-adapters qwen3_5 qwen3_5 --set agents.planner.lora.r=4 --set agents.researcher.lora.r=3
for saved in whole/planner:gemma3 whole/researcher:mistral3 recurrent/planner:qwen3_5; do
  folder=${saved%:*}
  cmp "$(find "$run/${folder%/*}" -path "*${folder#*/}/config.json" | sort | tail -1)" "$run/wrapped/${saved#*:}/config.json"
done
if [ -n "${ONE_BASE-1}" ]; then
  echo 'interop: two adapters on SmolLM2 train three small steps (minutes)'
  smollm2=$PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf
  train one-base examples/one-base/team.yaml --set run.steps=3 --set run.checkpoint_every=3 \
    --set cold_start.queries=8 --set cold_start.steps=2 --set cold_start.batch=2 \
    --set task.queries_per_step=1 --set grpo.rollouts=2 --set eval.queries=1 \
    --set agents.planner.model="$smollm2" --set agents.planner.limits.max_new_tokens=24 \
    --set agents.solver.model="$smollm2" --set agents.solver.limits.max_new_tokens=24
fi

mkdir -p "$run/goldens"
MGRPO_SAVED=$run/goldens go test -count=1 ./trainer/model/weights -run '^TestGoldenRoundTrip$' >>$log 2>&1 || { cat $log >&2; exit 1; }

mapfile -t folders < <(find "$run" \( -name config.json -o -name adapter_config.json \) -printf '%h\n' | sort)
read -ra models <<<"${INTEROP_MODELS:-}"
python bench/interop/check.py bin/mgrpo "${folders[@]}" "${models[@]}"
echo 'interop: llama.cpp reads what mgrpo exports'
python bench/interop/llama.py bin/mgrpo "$run"/goldens/* "$(dirname "$(find "$run/text" -path '*planner/config.json' | sort | tail -1)")"
python examples/kernels/logprob.py
