#!/usr/bin/env bash
# setup.sh SITE [tests]: prepares a Debian-like machine for the Makefile's builds and runs, and with `tests` for its tests. It installs
# system packages with apt if root, and prints the exact command otherwise. It also installs LibTorch in the folder SITE, XGrammar and Go
# modules. Downloads run in parallel. It prints nothing if everything exists.
set -euo pipefail
cd "$(dirname "$0")/.."
site=$1

packages=()
need() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }
need g++ g++
need cmake cmake
need ninja ninja-build
pip=1
python3 -m pip --version >/dev/null 2>&1 || { packages+=(python3-pip); pip=; }
if [ "${2-}" = tests ]; then
  need redis-server redis-server
  command -v chromium chromium-browser google-chrome >/dev/null 2>&1 || packages+=(chromium)
  need shellcheck shellcheck
  [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || packages+=(libgtest-dev)
fi
install="apt-get install -y --no-install-recommends ${packages[*]}"
if [ ${#packages[@]} -gt 0 ] && { [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; }; then
  printf 'setup: these packages are missing; run this, then start again:\n  sudo apt-get update && sudo %s\n' "$install" >&2
  exit 1
fi

command -v go >/dev/null || { echo 'setup: Go 1.26 or newer is needed, and none is on the PATH: see go.dev/doc/install' >&2; exit 1; }
found=$(go env GOVERSION)
case "$(printf '%s\n' go1.26 "$found" | sort -V | head -1)" in
  go1.26) ;;
  *) echo "setup: Go 1.26 or newer is needed, found $found: see go.dev/doc/install" >&2; exit 1 ;;
esac

packages() {
  if [ ${#packages[@]} = 0 ]; then return; fi
  echo "setup: installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  $install -qq >/dev/null
}

libraries() { bindings/grammar/xgrammar.sh build/xgrammar & local grammar=$!; bindings/torch/libtorch.sh "$site" && wait $grammar; }

jobs=()
go mod download & jobs+=($!)
if [ $pip ]; then libraries & jobs+=($!); fi
status=0
packages || status=$?
if [ ! $pip ] && [ $status = 0 ]; then libraries || status=$?; fi
for job in "${jobs[@]}"; do wait "$job" || status=$?; done
exit $status
