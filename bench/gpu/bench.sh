#!/usr/bin/env bash
# bench.sh [SUITE...]: measures kernels, rollout, learner and step on the GPU beside PyTorch and transformers, each suite
# in under 8 minutes (BENCH_SECONDS): rows that are there when time runs out are kept. Writes one JSON a suite into
# $OUT (build/gpu-results); copied to bench/results they enter docs/benchmarks.md. The status is 1 if a suite failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
. bench/gpu/env.sh
[ $# -gt 0 ] || set -- kernels rollout learner step
slug=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9\n' -)
results=${OUT:-build/gpu-results}
mkdir -p "$results"
failed=0
for suite; do
  start=$SECONDS
  timeout --signal=INT "${BENCH_SECONDS:-480}" "$pack/bin/mgrpo-cuda" bench "$suite" --device cuda --out "$results/$suite-$slug.json" ||
    { echo "$suite: ended early with status $?" >&2; failed=1; }
  echo "$suite: $((SECONDS - start)) s"
done
exit $failed
