#!/usr/bin/env bash
# arm64.sh: builds everything for arm64 Linux with a cross compiler, runs the kernels' tests on an emulated processor, and trains a
# small team there (make test-arm64). The build has a copy of the tree in build/arm64, since cgo's flags name folders of the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
missing=()
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
[ -e /usr/src/googletest/CMakeLists.txt ] || missing+=(googletest)
if [ ${#missing[@]} -gt 0 ]; then
  install="apt-get install -y --no-install-recommends ${missing[*]}"
  [ "$(id -u)" = 0 ] || { echo "test-arm64: packages are missing: $install" >&2; exit 1; }
  echo "test-arm64: installing ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
fi

tree=$PWD/build/arm64/tree
mkdir -p "$tree/build"
find "$tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -r {} +
git ls-files -z | xargs -0 cp --parents -p -t "$tree" # with their times, because the build compiles only files with newer times
if [ ! -e "$tree/build/xgrammar" ]; then cp -a build/xgrammar "$tree/build/"; fi
cd "$tree"
ARCH=aarch64 bindings/torch/libtorch.sh build/site
qemu=(qemu-aarch64-static -L /usr/aarch64-linux-gnu)
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2

export GTEST_AARCH64=$tree/build/gtest
toolchain=-DCMAKE_TOOLCHAIN_FILE=$tree/.ci/aarch64.cmake
if [ ! -d "$GTEST_AARCH64" ]; then
  cmake -S /usr/src/googletest -B build/gtest-build -G Ninja "$toolchain" -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_PREFIX="$GTEST_AARCH64" >/dev/null
  ninja -C build/gtest-build install >/dev/null
fi
echo 'test-arm64: kernels, their tests, and the shim'
cmake -S . -B build/cmake -G Ninja "$toolchain" -DMGRPO_TESTS=ON -DTORCH_SITE="$tree/build/site" >/dev/null
ninja -C build/cmake mgrpo_kernels mgrpo_torch mgrpo_grammar kernels_test
echo 'test-arm64: the kernels'\'' tests'
# These tests take minutes on an emulated processor and are left out.
"${qemu[@]}" build/test/kernels_test --gtest_brief=1 --gtest_filter='-AttentionPacked.*:FromLogits.MatchesTheDefinition*'

echo 'test-arm64: the program'
env=$(GOTCH_CXX=aarch64-linux-gnu-g++ bindings/torch/gotchx/env.sh build/site && cuda/env.sh)
eval "$env"
export GOOS=linux GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc LINK_CXX=aarch64-linux-gnu-g++
export CGO_LDFLAGS="$CGO_LDFLAGS -Wl,-rpath-link,$tree/build/site/nvidia/cu13/lib -Wl,-rpath-link,$tree/build/site/torch/lib"
# shellcheck disable=SC2016 # the loader expands $ORIGIN
go build -buildvcs=false -ldflags '-extld=.ci/link.sh -extldflags "-Wl,-rpath,$ORIGIN/../build/lib,-rpath,$ORIGIN/../build/site/torch/lib"' -o bin/mgrpo ./cmd/mgrpo
"${qemu[@]}" bin/mgrpo version
echo 'test-arm64: a small team begins on this machine, and both processors make its second step'
small=(train examples/quickstart/team.yaml --resume --set run.dir="$tree/build/run")
mapfile -t -O ${#small[@]} small < <(tr ' ' '\n' <.ci/quickstart-small)
# An emulated processor learns about 20 tokens per second.
for setting in run.threads=1 task.queries_per_step=1 grpo.rollouts=4 grpo.epochs=1 grpo.minibatches=1 eval.queries=2 agents.planner.cold_start.steps=150; do
  small+=(--set "$setting")
done
rm -rf build/run build/x86-64
../../../bin/mgrpo "${small[@]}"
cp -r build/run build/x86-64
rm -r build/run/checkpoints/step-000002
"${qemu[@]}" bin/mgrpo "${small[@]}"
python3 - build/x86-64/metrics.jsonl build/run/metrics.jsonl <<'END'
import json, math, sys

def step(path):
    rows = [json.loads(line) for line in open(path)]
    return {row["agent"]: row["values"] for row in rows if (row["kind"], row.get("step")) == ("step", 2)}

here, emulated = map(step, sys.argv[1:])
tolerance = {"sampled_tokens": 0, "trained_tokens": 0, "updates": 0, "reward_mean": 1e-9, "entropy_mean": 1e-4, "grad_norm": 1e-4}
updates = 0
for agent in ("planner", "researcher"):
    for name, relative in tolerance.items():
        a, b = here[agent].get(name), emulated[agent].get(name)
        print(f"test-arm64: {agent}: {name} {a} on x86-64, {b} on arm64")
        if (a is None) != (b is None) or a is not None and not math.isclose(a, b, rel_tol=relative):
            sys.exit(f"test-arm64: {agent}: {name} differs by more than {relative:g} of its value")
    updates += "grad_norm" in emulated[agent]
if not updates:
    sys.exit("test-arm64: no agent was updated, so nothing was compared")
END
echo 'test-arm64: all of it worked'
