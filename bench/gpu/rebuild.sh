#!/usr/bin/env bash
# rebuild.sh [FLAG...]: builds libmgrpo_kernels_cuda.so of this folder again, with nvcc, for the GPU of this machine alone: with another
# constant (-DNAME=VALUE), or after a change of a source in kernels/cuda. A minute on 16 cores. The packed library is kept as
# libmgrpo_kernels_cuda.so.before.
set -euo pipefail
cd "$(dirname "$0")/../.."
nvcc=${CUDACXX:-nvcc} objects=build/gpu-work/objects library=build/gpu/lib/libmgrpo_kernels_cuda.so
capability=${CAPABILITY:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)}
case $capability in 9* | 1*) capability=${capability}a ;; esac
rm -rf $objects
mkdir -p $objects "$(dirname $library)"
compile() { # SOURCE FLAG...; multiply-adds are fused where the source has them fused
  "$nvcc" "${@:2}" --fmad=false -gencode="arch=compute_$capability,code=sm_$capability" -std=c++17 -O3 -DNDEBUG -Xcompiler=-fPIC,-fvisibility=hidden \
    -Ikernels/include -Ikernels/common -Ikernels/cuda -c -o "$objects/$(basename "$1").o" "$1"
}
export -f compile
export nvcc capability objects
flags=
[ $# = 0 ] || flags=$(printf ' %q' "$@")
printf '%s\n' "${SOURCES:-kernels/cuda}"/*.cu | xargs -P "$(nproc)" -I FILE bash -c "compile FILE$flags"
[ -e $library.before ] || [ ! -e $library ] || cp $library $library.before
g++ -shared -o $library.new $objects/*.o "${CUDART:-$(dirname "$(command -v "$nvcc")")/../lib64/libcudart.so}"
mv $library.new $library
ls -l $library
