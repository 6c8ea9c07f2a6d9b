#!/usr/bin/env bash
# test.sh: every test that a GPU can take, from cheap to dear: the kernels' suite on both backends, the Go tests of bindings,
# model, learner, engine and benchmarks, the quickstart's team on the GPU beside the same on the CPU, and the kernels under
# compute-sanitizer. Every stage has a time limit, none hides those behind it, and after each gpu-test.json is written anew.
# A stage that has not begun after GPU_TEST_SECONDS (540) is left to the next call, which repeats none that passed.
# Status 0: all passed; 1: one failed; 3: some are left.
set -euo pipefail
cd "$(dirname "$0")/../.."
. bench/gpu/env.sh
export root=$PWD pack
describe() { nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }
device=$(describe name) driver=$(describe driver_version)
results=$root/build/gpu-results/$pack_id-${device// /-}-$driver
out=${OUT:-$root/build/gpu-results}
log=$out/gpu-test.log
budget=${GPU_TEST_SECONDS:-540}
mkdir -p "$results" "$out"
: >"$log"
version=$("$pack/bin/mgrpo-cuda" version | head -n 1)
stages=()

# write: gpu-test.json as it stands.
write() {
  local name separator=
  {
    printf '{"device": "%s", "driver": "%s",\n "commit": "%s",\n "stages": [' "$device" "$driver" "$version"
    for name in "${stages[@]}"; do
      printf '%s\n  %s' "$separator" "$(cat "$results/$name")"
      separator=,
    done
    printf '\n ]}\n'
  } >"$out/gpu-test.json.new"
  mv "$out/gpu-test.json.new" "$out/gpu-test.json"
}

# record NAME STATUS SECONDS
record() {
  printf '{"stage": "%s", "status": "%s", "seconds": %d}\n' "$@" >"$results/$1"
  printf '%-24s %-10s %4d s\n' "$@"
}

# stage NAME LIMIT COMMAND...: runs it for LIMIT seconds at most. The end of what it says is shown if it fails.
stage() {
  local name=$1 limit=$2 start=$SECONDS status=passed from
  shift 2
  stages+=("$name")
  if grep -qs '"passed"' "$results/$name"; then
    printf '%-24s passed before\n' "$name"
  elif [ $((SECONDS + limit)) -gt "$budget" ]; then
    record "$name" left 0
  else
    from=$(wc -l <"$log")
    echo "== $name" >>"$log"
    timeout --kill-after=10 "$limit" bash -euo pipefail -c '"$@"' stage "$@" >>"$log" 2>&1 || { [ $? = 124 ] && status=timed_out || status=failed; }
    [ $status = passed ] || tail -n +$((from + 1)) "$log" | tail -n 40
    record "$name" $status $((SECONDS - start))
  fi
  write
}

go_test() {
  cd "$root/$1"
  MGRPO_GOLDENS=$root/testdata "$pack/test/${1//\//.}.go_test" -test.timeout 10m
}

sanitised() { compute-sanitizer --tool "$1" --error-exitcode 9 "$pack/test/kernels_test" --gtest_brief=1 --gtest_filter='*/cuda*:-*Beyond*'; }

# The quickstart's team, small, on a device in a precision.
quickstart() {
  local dir=$root/build/gpu-quickstart/$1-$2
  rm -rf "$dir"
  # shellcheck disable=SC2046
  "$pack/bin/mgrpo-cuda" train -c "$root/examples/quickstart/team.yaml" $(cat "$root/.ci/quickstart-small") \
    --set cold_start.queries=512 --set agents.planner.cold_start.steps=60 --set agents.researcher.cold_start.steps=60 \
    --set run.dir="$dir" --set agents.planner.device="$1" --set agents.planner.dtype="$2" \
    --set agents.researcher.device="$1" --set agents.researcher.dtype="$2"
  "$pack/bin/mgrpo-cuda" report "$dir"
}

beside_cpu() {
  quickstart cuda fp32
  quickstart cuda bf16
  quickstart cpu fp32
  cd "$root/build/gpu-quickstart"
  python3 "$root/bench/gpu/compare.py" cuda-fp32 cpu-fp32 0.01 0.001
  python3 "$root/bench/gpu/compare.py" cuda-bf16 cpu-fp32 0.05 0.03
}
export -f go_test sanitised quickstart beside_cpu

stage proof 60 "$pack/bin/mgrpo-cuda" doctor --kernels
stage kernels 90 "$pack/test/kernels_test" --gtest_brief=1
for folder in cuda bindings/kernels bindings/torch trainer/model trainer/learner trainer/policy/local bench/kernels bench/phases; do
  stage "${folder//\//.}" 90 go_test $folder
done
stage quickstart 120 beside_cpu
stage memcheck 150 sanitised memcheck
stage racecheck 150 sanitised racecheck
! grep -q '"failed"\|"timed_out"' "$out/gpu-test.json" || exit 1
! grep -q '"left"' "$out/gpu-test.json" || exit 3
