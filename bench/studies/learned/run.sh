#!/usr/bin/env bash
# run.sh NAME CONFIG FLAG...: trains CONFIG in runs/NAME, and asks its cold start and its last checkpoint the held-out questions, sampled
# and greedily. The results are written to bench/results/NAME.json. The same command continues after an interruption, but it starts an
# interrupted evaluation again. QUESTIONS (256), SAMPLES (2) answers each, and GREEDY (128) questions.
set -euo pipefail
fail() {
  echo "run.sh: $1" >&2
  exit 2
}
[ $# -ge 2 ] || fail 'NAME CONFIG FLAG... are missing, such as: svamp-3 examples/svamp/team.yaml --set run.seed=3'
name=$1 config=$(realpath -e "$2")
shift 2
cd "$(dirname "$0")/../../.."
run=$PWD/runs/$name out=bench/results/$name.json
[[ $name =~ ^[A-Za-z][A-Za-z0-9_-]*$ ]] || fail "$name is no name: letters, digits, dashes and underscores"
[ -x bin/mgrpo ] || fail 'there is no bin/mgrpo: make build'
[ ! -e "$out" ] || [ -e "$run" ] || fail "$out is of another run: runs/$name is not there. Choose another name"

# Parts of an interrupted run may be from different builds. Every build is recorded.
mkdir -p "$run/learned"
builds=$run/learned/builds
build=$(bin/mgrpo version | sed -n 's/^mgrpo *//p')
[ "$build" = "$(tail -qn 1 "$builds" 2>/dev/null)" ] || echo "$build" >>"$builds"

bin/mgrpo train "$config" "$@" --set run.name="$name" --set run.dir="$run" --resume

# evaluate STEP FLAG...: sets $answers to the file of an evaluation. An existing file is used as it is.
evaluate() {
  answers=$run/learned/$(printf '%s' "$*" | tr -c 'A-Za-z0-9.=-' _).json
  [ ! -e "$answers" ] || return 0
  bin/mgrpo eval "$run/config.yaml" --checkpoint "$run/checkpoints/$1" --json "${@:2}" >"$answers.part"
  mv "$answers.part" "$answers"
}

first=step-000000 last=$(cd "$run/checkpoints" && printf '%s\n' step-*/manifest.json | grep -oE '^step-[0-9]+/' | sort | tail -n 1)
[ -e "$run/checkpoints/$first/manifest.json" ] || fail "$run has no checkpoint $first: without a cold start there is nothing to compare with"
sampled=(--set eval.queries="${QUESTIONS:-256}" --set eval.samples="${SAMPLES:-2}")
greedily=(--set eval.temperature=0 --set eval.queries="${GREEDY:-128}" --set eval.samples=1)
found=()
for step in "$first" "${last%/}"; do
  when=$([ "$step" = $first ] && echo before || echo after)
  evaluate "$step" "${sampled[@]}"
  found+=("-$when" "$answers")
  evaluate "$step" "${greedily[@]}"
  found+=("-greedy-$when" "$answers")
done

environment=$(make -s env)
eval "$environment"
go run ./bench/studies/learned -run "$run" -commit "$(paste -sd , "$builds" | sed 's/,/, /g')" "${found[@]}" -out "$out"
