#!/usr/bin/env bash
# build.sh TAG: builds an image of the program that make build has built (make image). CUDA=1, after make build CUDA=1, adds mgrpo-cuda and
# LibTorch's CUDA libraries. BASE names a Debian 12 image other than the registry's, BUILDER a command other than podman build, buildah bud
# or docker build.
set -euo pipefail
cd "$(dirname "$0")/../.."
tag=$1
context=$PWD/build/image/context
rm -rf "$context"
mkdir -p "$context/opt/mgrpo"/{bin,build}

# The image has the libraries that ldd finds for the program, in the folders where the program looks for them. The rest of the wheels is
# left out.
libraries=(libc10.so libtorch_cpu.so libtorch.so libtorch_global_deps.so 'libgomp*')
programs=(mgrpo)
if [ "${CUDA-}" ]; then programs+=(mgrpo-cuda); fi
for program in "${programs[@]}"; do cp -l "bin/$program" "$context/opt/mgrpo/bin/"; done
mkdir -p "$context/opt/mgrpo/build/lib"
cp -l build/lib/libmgrpo_{torch,kernels,grammar}.so "$context/opt/mgrpo/build/lib/"
site=$(realpath build/site)
mkdir -p "$context/opt/mgrpo/build/site/torch/lib"
for library in "${libraries[@]}"; do
  # shellcheck disable=SC2086 # a pattern
  cp -a "$site/torch/lib/"$library "$context/opt/mgrpo/build/site/torch/lib/"
done
cp -a "$site/nvidia" "$context/opt/mgrpo/build/site/nvidia"
if [ "${CUDA-}" ]; then
  cp -l build/lib/libmgrpo_{torch,kernels}_cuda.so "$context/opt/mgrpo/build/lib/"
  mkdir -p "$context/opt/mgrpo/build/site-cuda/torch"
  cp -a build/site-cuda/torch/lib "$context/opt/mgrpo/build/site-cuda/torch/"
  cp -a build/site-cuda/nvidia "$context/opt/mgrpo/build/site-cuda/"
fi
cp -a examples "$context/opt/mgrpo/"

if [ -z "${BUILDER-}" ]; then
  for found in 'podman build' 'buildah bud' 'docker build'; do
    if command -v "${found%% *}" >/dev/null; then
      BUILDER=$found
      break
    fi
  done
fi
[ "${BUILDER-}" ] || { echo 'image: podman, buildah or docker is needed' >&2; exit 1; }
# shellcheck disable=SC2086 # a command with its arguments
exec $BUILDER ${BASE:+--build-arg "BASE=$BASE"} -t "$tag" -f deploy/image/Containerfile "$context"
