#!/usr/bin/env bash
# The linker of bin/mgrpo, for go build -ldflags "-extld=.ci/link.sh": g++ without the run paths that the bindings give it for tests. These
# are folders of this machine; the program finds its libraries in its own folder. LINK_CXX names another compiler.
set -euo pipefail
arguments=()
for a in "$@"; do
  case $a in
    -Wl,-rpath,/*) ;;
    *) arguments+=("$a") ;;
  esac
done
exec "${LINK_CXX:-g++}" "${arguments[@]}"
