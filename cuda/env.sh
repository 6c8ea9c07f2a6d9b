#!/usr/bin/env bash
# env.sh: prints the export line and the path of nvcc that builds with the tag `cuda` need, for `eval "$(cuda/env.sh)"`. The CUDA toolkit is
# the one whose nvcc is $CUDACXX or on the PATH (12.8 or newer), else the wheels that bindings/torch/libtorch.sh installs into
# build/site-cuda. Without the tag the line changes nothing. It is always exported, because Go builds C++ again whenever flags change.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")

# usable NVCC: succeeds if it is new enough for every architecture that we build for.
usable() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  [ -n "$version" ] && [ "$(printf '%s\n' 12.8 "$version" | sort -V | head -1)" = 12.8 ]
}

nvcc=$root/build/site-cuda/nvidia/cu13/bin/nvcc
for found in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  if [ -n "$found" ] && usable "$found"; then
    nvcc=$(realpath "$found")
    break
  fi
done
printf 'export CUDACXX=%q\n' "$nvcc"
printf 'export CGO_CFLAGS=%q\n' "-g -O2 '-I$here/compat' '-I$(dirname "$(dirname "$nvcc")")/include'"
