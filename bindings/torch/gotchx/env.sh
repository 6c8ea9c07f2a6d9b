#!/usr/bin/env bash
# env.sh SITE: prints the export lines that building gotch needs, for `eval "$(bindings/torch/gotchx/env.sh SITE)"`.
# SITE holds torch/ as its wheel unpacks. GOTCH_CXX names another compiler than g++. Only packages that import gotchx need these.
#
# gotch names a dozen CUDA libraries on its link line: empty archives under build/stubs satisfy
# them, and --as-needed keeps libtorch.so, which would ask for CUDA, out of the program. gotch's
# own flags -g -O3 come after ours and cost minutes on its one large file. So the compiler
# wrapper build/cxx adds -O0 at the end, since that file only passes calls to LibTorch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/../../../build
site=$(cd "${1:?usage: env.sh SITE}" && pwd)
[ -d "$site/torch/include/ATen" ] || { echo "env.sh: no torch/include under $site" >&2; exit 1; }

mkdir -p "$build/stubs"
build=$(cd "$build" && pwd)
for name in cuda cudart cublas cudnn caffe2_nvrtc nvrtc-builtins nvrtc nvToolsExt c10_cuda torch_cuda; do
  printf '!<arch>\n' > "$build/stubs/lib$name.a"
done
printf '#!/bin/sh\nexec %q "$@" -O0 -g0 -w\n' "$(command -v "${GOTCH_CXX:-g++}")" > "$build/cxx.new"
chmod +x "$build/cxx.new"
mv "$build/cxx.new" "$build/cxx"

printf 'export CXX=%q\n' "$build/cxx"
printf 'export CGO_CXXFLAGS=%q\n' \
  "'-I$site/torch/include' '-I$site/torch/include/torch/csrc/api/include' -include '$here/compat/gotch_compat.h'"
printf 'export CGO_LDFLAGS=%q\n' "-Wl,--as-needed '-L$build/stubs' '-L$site/torch/lib' '-Wl,-rpath,$site/torch/lib'"
