#!/usr/bin/env bash
# Brings a Debian-like machine to where the Makefile can build and test: system packages through apt when
# root, otherwise the exact command to run is printed. Says nothing where everything is there.
set -euo pipefail

packages=()
need() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }
need g++ g++
need cmake cmake
need ninja ninja-build
need redis-server redis-server
need chromium chromium
need shellcheck shellcheck
[ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || packages+=(libgtest-dev)
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)

if [ ${#packages[@]} -gt 0 ]; then
  install="apt-get install -y --no-install-recommends ${packages[*]}"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    printf 'setup: these packages are missing; run this, then start again:\n  sudo apt-get update && sudo %s\n' "$install" >&2
    exit 1
  fi
  echo "setup: installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  $install -qq >/dev/null
fi

command -v go >/dev/null || { echo 'setup: Go 1.26 or newer is needed, and none is on the PATH: see go.dev/doc/install' >&2; exit 1; }
found=$(go env GOVERSION)
case "$(printf '%s\n' go1.26 "$found" | sort -V | head -1)" in
  go1.26) ;;
  *) echo "setup: Go 1.26 or newer is needed, found $found: see go.dev/doc/install" >&2; exit 1 ;;
esac
