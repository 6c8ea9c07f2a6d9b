#!/usr/bin/env bash
# test.sh: every test that a GPU can take, in under 8 minutes: the kernels' suite on both backends, the same under
# compute-sanitizer, the Go tests of bindings, model, learner and engine, and the quickstart's team trained on the
# GPU. Prints a line a stage and writes gpu-test.json into $OUT (build/gpu-results). The status is 1 if any failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
. bench/gpu/env.sh
stages=() failed=0

# stage NAME COMMAND...: output goes to a file; its end is shown if the command fails.
stage() {
  local name=$1 log=$results/$1.log start=$SECONDS status=ok
  shift
  "$@" >"$log" 2>&1 || { status=failed failed=1; tail -n 40 "$log"; }
  printf '%-12s %-7s %4d s\n' "$name" $status $((SECONDS - start))
  stages+=("{\"stage\": \"$name\", \"status\": \"$status\", \"seconds\": $((SECONDS - start))}")
}

go_tests() {
  for program in "$pack"/test/*.go_test; do
    local folder=${program##*/}
    folder=${folder%.go_test}
    (cd "${folder//.//}" && MGRPO_GOLDENS=$root/testdata "$program" -test.timeout 5m) || return 1
  done
}

sanitised() { compute-sanitizer --tool "$1" --error-exitcode 9 "$pack/test/kernels_test" --gtest_brief=1 --gtest_filter='*/cuda*:-*Beyond*'; }

quickstart() {
  rm -rf build/gpu-quickstart
  "$pack/bin/mgrpo-cuda" train -c examples/quickstart/team.yaml --set run.dir="$PWD/build/gpu-quickstart" --set run.steps=10 \
    --set agents.planner.device=cuda --set agents.researcher.device=cuda
  "$pack/bin/mgrpo-cuda" report build/gpu-quickstart
}

root=$PWD
stage kernels "$pack/test/kernels_test" --gtest_brief=1 --gtest_output="json:$results/kernels.json"
stage go go_tests
stage memcheck sanitised memcheck
stage racecheck sanitised racecheck
stage quickstart quickstart

{
  printf '{"device": "%s", "driver": "%s",\n "commit": "%s",\n "stages": [\n  ' \
    "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" \
    "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)" "$("$pack/bin/mgrpo-cuda" version | head -n 1)"
  (IFS=$'\n'; printf '%s' "${stages[*]}" | sed '$!s/$/,/; 2,$s/^/  /')
  printf '\n ]}\n'
} >"$results/gpu-test.json"
exit $failed
