#!/usr/bin/env bash
# pack.sh: puts what a GPU machine needs into build/gpu and build/gpu.tar.xz: libraries, bin/mgrpo-cuda and test
# programs, stripped. Such a machine has Python with LibTorch's version of torch and a driver; it needs neither Go
# nor a compiler nor a network. `make build CUDA=1` runs this.
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=build/gpu
rm -rf $pack
mkdir -p $pack/bin $pack/lib $pack/test
strip --strip-unneeded -o $pack/bin/mgrpo-cuda bin/mgrpo-cuda
for library in build/lib/*.so; do strip --strip-unneeded -o "$pack/lib/$(basename "$library")" "$library"; done
strip --strip-unneeded -o $pack/test/kernels_test build/test/kernels_test

# The name of a Go test program says in which folder it is to be run: bindings.torch in bindings/torch.
for folder in cuda bindings/kernels bindings/torch trainer/model trainer/learner trainer/policy/local bench/kernels bench/phases; do
  go test -c -tags cuda -ldflags '-s -w' -o "$pack/test/${folder//\//.}.go_test" "./$folder"
done
tar -C build -c gpu | xz -T0 -4 >$pack.tar.xz
du -h $pack.tar.xz | sed 's/^/packed: /'
