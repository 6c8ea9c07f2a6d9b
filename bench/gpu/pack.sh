#!/usr/bin/env bash
# pack.sh: puts the programs that a GPU machine runs into build/gpu, stripped: bin/mgrpo-cuda, its libraries and test programs.
# Such a machine has Python with LibTorch's version of torch and a driver; it needs neither Go nor a compiler.
# `make build CUDA=1` runs this, and send.sh makes one folder of it.
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=build/gpu
rm -rf $pack
mkdir -p $pack/bin $pack/lib $pack/test
strip --strip-unneeded -o $pack/bin/mgrpo-cuda bin/mgrpo-cuda
for name in torch torch_cuda kernels kernels_cuda; do strip --strip-unneeded -o $pack/lib/libmgrpo_$name.so build/lib/libmgrpo_$name.so; done
cp build/lib/mgrpo_group_advantage.fatbin $pack/lib/ # loaded by a test of bindings/kernels
strip --strip-unneeded -o $pack/test/kernels_test build/test/kernels_test

# The name of a Go test program is the folder in which it has to run: bindings.torch runs in bindings/torch.
for folder in cuda bindings/kernels bindings/torch trainer/model trainer/engine/learner trainer/engine/policy/local; do
  go test -c -tags cuda -ldflags '-s -w' -o "$pack/test/${folder//\//.}.go_test" "./$folder"
done

# The machine has the C and C++ libraries, the libraries in the wheels of torch and CUDA, and the driver.
known='^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|torch_cpu|torch_cuda|torch|c10|c10_cuda|cudart|cuda|mgrpo_[a-z_]+)\.so|ld-linux)'
for program in "$pack"/*/*; do
  [[ $program != *.fatbin ]] || continue
  if objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }' | grep -Ev "$known" | sed "s|^|$program needs a library that a GPU machine may lack: |" >&2; then exit 1; fi
done
