#!/usr/bin/env bash
# libtorch.sh SITE [cpu|cuda|cuda-run]: makes SITE hold torch/ and nvidia/, LibTorch 2.11.0 as its wheel unpacks.
#   LIBTORCH=DIR           use that torch folder (lib/, include/) instead; another version is an error
#   an importable torch    of the same version is used instead of a download
#   ARCH=aarch64           fetches the wheels of another processor than this machine's (x86_64, aarch64)
# `cuda` adds the compiler and headers that the CUDA kernels are built with; no GPU is needed. `cuda-run` adds
# the libraries that LibTorch's CUDA part needs to run.
set -euo pipefail
site=$1 kind=${2:-cpu} want=2.11.0
here=$(cd "$(dirname "$0")" && pwd) arch=${ARCH:-$(uname -m)}
case $arch-$kind in
  x86_64-* | aarch64-cpu) ;;
  *) echo "libtorch: the wheels of LibTorch $want ($kind) for $arch are not known here; x86_64 has all, aarch64 cpu" >&2; exit 1 ;;
esac

version_of() { sed -n "s/^__version__ = '\([^']*\)'/\1/p" "$1/version.py" 2>/dev/null || true; }
link() {  # a torch folder elsewhere, and the nvidia folder next to it
  mkdir -p "$site"
  if [ ! -L "$site/torch" ]; then rm -rf "$site/torch" "$site/nvidia" "$site"/.*-"$want"; fi
  ln -sfn "$(realpath "$1")" "$site/torch"
  if [ -d "$1/../nvidia" ]; then ln -sfn "$(realpath "$1/../nvidia")" "$site/nvidia"; fi
}
check() {
  found=$(version_of "$1"); found=${found:-$(cat "$1/build-version" 2>/dev/null || echo unknown)}
  [ "${found%%+*}" = $want ] || { echo "libtorch: $1 is version $found; $want is needed. Unset $2 to download it." >&2; exit 1; }
}

if [ -n "${LIBTORCH:-}" ]; then
  [ -d "$LIBTORCH/include/ATen" ] || { echo "libtorch: LIBTORCH=$LIBTORCH holds no include/ATen; point it at the torch folder itself" >&2; exit 1; }
  check "$LIBTORCH" LIBTORCH
  [ "$kind" = cpu ] && { link "$LIBTORCH"; exit 0; }
fi
case $kind in  # each holds the ones before it
  cpu) size=0.54 enough='cpu cuda cuda-run' ;;
  cuda) size=0.84 enough='cuda cuda-run' ;;
  cuda-run) size=2.6 enough=cuda-run ;;
  *) echo "libtorch: $kind is not cpu, cuda or cuda-run" >&2; exit 1 ;;
esac
for have in $enough; do
  if [ -e "$site/.$have-$want" ]; then exit 0; fi
done

if [ "$kind" = cpu ] && [ "$arch" = "$(uname -m)" ]; then
  installed=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null || true)
  if [ -n "$installed" ] && [ "$(version_of "$installed" | cut -d+ -f1)" = $want ]; then
    echo "libtorch: using the installed $installed"
    link "$installed"
    exit 0
  fi
fi

platforms=()
for tag in manylinux_2_{28,27,25,18,17,12} manylinux2014 manylinux2010; do platforms+=(--platform "${tag}_$arch"); done
echo "libtorch: downloading $want ($kind: $size GB) into $site"
rm -rf "$site.part"
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile --require-hashes --target "$site.part" \
  --only-binary=:all: --implementation cp --python-version 3.11 \
  "${platforms[@]}" \
  -r "$here/requirements-$kind.txt"
check "$site.part/torch" LIBTORCH
if [ "$kind" = cpu ]; then  # CUDA's files are not needed: half of the wheel
  rm -rf "$site.part"/torch/lib/libtorch_cuda*.so "$site.part"/torch/lib/libtorch_nvshmem.so "$site.part"/torch/bin/{protoc*,ptxas}
fi
touch "$site.part/.$kind-$want"
rm -rf "$site" && mv "$site.part" "$site"
