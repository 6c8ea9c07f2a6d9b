#!/usr/bin/env bash
# torch-versions.sh [VERSION...]: builds the shim against other versions of LibTorch and runs its tests there (make torch-versions). Each
# version is downloaded (0.5 GB), unpacked without its CUDA part, and deleted afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
versions=("$@")
[ $# -gt 0 ] || versions=(2.12.1 2.13.0 2.14.1 2.15.0)
folder=$PWD/build/torch-versions
failed=()

# unpack VERSION: fills site/ with the wheel of torch, and with the versions of the CUDA runtime and CUPTI that it names.
unpack() {
  rm -rf "$folder/site" "$folder/wheels"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile --only-binary=:all: \
    --implementation cp --python-version 3.11 --platform manylinux_2_28_x86_64 --target "$folder/site" "torch==$1"
  rm -rf "$folder"/site/torch/lib/libtorch_cuda*.so "$folder"/site/torch/lib/libtorch_nvshmem.so
  local wanted
  wanted=$(sed -nE 's/^Requires-Dist: (nvidia-cuda-(runtime|cupti)[^=;]*==[^;]*).*/\1/p' "$folder"/site/torch-*.dist-info/METADATA | tr -d ' ')
  # From 2.12 on, the wheel names the parts of a single meta package, and its extras name the libraries.
  if [ -z "$wanted" ]; then
    local toolkit
    toolkit=$(sed -nE 's/^Requires-Dist: (cuda-toolkit)\[[^]]*\](==[^;]*).*/\1\2/p' "$folder"/site/torch-*.dist-info/METADATA | tr -d ' ')
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheels" "$toolkit"
    wanted=$(unzip -p "$folder"/wheels/*.whl '*/METADATA' | sed -nE 's/^Requires-Dist: (nvidia-cuda-(runtime|cupti)[^=;]*==[^;]*);.*/\1/p' | tr -d ' ' | sort -u)
  fi
  # shellcheck disable=SC2086 # a requirement a word
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile --target "$folder/site" --upgrade $wanted
}

for version in "${versions[@]}"; do
  echo "torch-versions: $version"
  unpack "$version"
  if cmake -S . -B "$folder/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMGRPO_TESTS=ON -DTORCH_SITE="$folder/site" -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$folder/lib" \
    -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$folder/test" >/dev/null && ninja -C "$folder/cmake" mgrpo_torch shim_test && "$folder/test/shim_test" --gtest_brief=1; then
    echo "torch-versions: $version works"
  else
    failed+=("$version")
  fi
done
rm -rf "$folder/site" "$folder/wheels"
if [ ${#failed[@]} -gt 0 ]; then
  echo "torch-versions: failed with ${failed[*]}" >&2
  exit 1
fi
