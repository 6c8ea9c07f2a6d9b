#!/usr/bin/env bash
# run.sh NAME CONFIG FLAG...: trains CONFIG in runs/NAME and asks its cold start and its end the held-out questions, sampled and greedily.
# What it came to is written to bench/results/NAME.json. The same command goes on where it was stopped; an evaluation is begun again.
# QUESTIONS (256), SAMPLES (2) answers each, and GREEDY (128) questions.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=$1 config=$2
shift 2
run=$PWD/runs/$name commit=$(git describe --always --dirty)
resume=()
[ ! -e "$run/checkpoints" ] || resume=(--resume)
bin/mgrpo train "$config" --set run.name="$name" --set run.dir="$run" "$@" "${resume[@]}"

# evaluate NAME STEP FLAG...: an evaluation that is there is left as it is.
evaluate() {
  local out=$run/learned/$1.json step=$2
  shift 2
  [ ! -e "$out" ] || return 0
  mkdir -p "$run/learned"
  bin/mgrpo eval "$run/config.yaml" --checkpoint "$run/checkpoints/$step" --json "$@" >"$out.part"
  mv "$out.part" "$out"
}

last=$(find "$run/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | tail -n 1)
sampled=(--queries "${QUESTIONS:-256}" --samples "${SAMPLES:-2}") greedily=(--set eval.temperature=0 --queries "${GREEDY:-128}" --samples 1)
evaluate after "$last" "${sampled[@]}"
evaluate greedy-after "$last" "${greedily[@]}"
evaluate before step-000000 "${sampled[@]}"
evaluate greedy-before step-000000 "${greedily[@]}"

environment=$(make -s env)
eval "$environment"
go run ./bench/learned -run "$run" -commit "$commit" -before "$run/learned/before.json" -after "$run/learned/after.json" \
  -greedy-before "$run/learned/greedy-before.json" -greedy-after "$run/learned/greedy-after.json" -out "bench/results/$name.json"
