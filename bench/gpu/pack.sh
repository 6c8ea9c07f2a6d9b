#!/usr/bin/env bash
# pack.sh: puts what a GPU machine needs into build/gpu: libraries, bin/mgrpo-cuda and test programs, stripped. Such a machine
# has Python with LibTorch's version of torch and a driver; it needs neither Go nor a compiler, xz or a network.
# build/gpu.parts/PART-COUNT are the same as one archive, cut so that the tracked files and a part are at most 64 MiB: what
# some machines take at a time. `make build CUDA=1` runs this.
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=build/gpu
rm -rf $pack $pack.parts
mkdir -p $pack/bin $pack/lib $pack/test $pack.parts
strip --strip-unneeded -o $pack/bin/mgrpo-cuda bin/mgrpo-cuda
for library in build/lib/*.so; do strip --strip-unneeded -o "$pack/lib/$(basename "$library")" "$library"; done
strip --strip-unneeded -o $pack/test/kernels_test build/test/kernels_test

# The name of a Go test program says in which folder it is to be run: bindings.torch in bindings/torch.
for folder in cuda bindings/kernels bindings/torch trainer/model trainer/learner trainer/policy/local bench/kernels bench/phases; do
  go test -c -tags cuda -ldflags '-s -w' -o "$pack/test/${folder//\//.}.go_test" "./$folder"
done

# Of libraries, the machine's C and C++, those of torch's wheel and of CUDA's, and the driver's.
known='^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|torch_cpu|torch_cuda|torch|c10|c10_cuda|cudart|cuda|mgrpo_[a-z_]+)\.so|ld-linux)'
for program in "$pack"/*/*; do
  objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }' | grep -Ev "$known" | sed "s|^|$program needs a library that a GPU machine may lack: |" >&2 && exit 1
done

# Programs share much of their code, farther apart than xz looks by itself.
tar -C build -c gpu | xz -T1 --x86 --lzma2=preset=5,dict=192MiB >$pack.parts/whole
tree=$(git ls-files -z | xargs -0 stat -c %s | awk '{ sum += $1 + 1024 } END { print sum }')
room=$(((64 << 20) - tree))
[ $room -ge $((4 << 20)) ] || { echo "the tracked files have $tree bytes: they leave no room for a part of build/gpu" >&2; exit 1; }
count=$((($(stat -c %s $pack.parts/whole) + room - 1) / room))
split -d -a 2 -b $room --additional-suffix=-$count $pack.parts/whole $pack.parts/
rm $pack.parts/whole
du -h $pack.parts/* | sed 's/^/packed: /'
