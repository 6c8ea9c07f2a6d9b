#!/usr/bin/env bash
# goldens.sh DIR: runs the tests with Golden in their names on the expected numbers under DIR. DIR has folders like
# testdata/ (families/, families-2026/, gguf-2026/, lora/, mgrpo/, models/, tokenizer/, tokenizer-2026/; any may be absent).
# Prints the number of compared cases of each kind and the skipped tests. Fails if a test fails or nothing was compared.
set -euo pipefail
[ -d "$1" ] || { echo "goldens: no folder $1" >&2; exit 2; }
export MGRPO_GOLDENS=$1 OMP_NUM_THREADS=1
cd "$(dirname "$0")/.."
log=build/goldens.log
mapfile -t packages < <(grep -rlE --include='*_test.go' '^func Test[A-Za-z0-9]*Golden' bindings cmd trainer | xargs -n1 dirname | sort -u | sed 's|^|./|')

status=0
go test -run Golden -v -count=1 -timeout 2h "${packages[@]}" >"$log" 2>&1 || status=$?
awk '
  $1 == "golden:" && $NF == "cases" { kind = $0; sub(/^golden: /, "", kind); sub(/: [0-9]+ cases$/, "", kind); seen[kind] += $(NF - 1) }
  /golden: .*absent/ { sub(/^.*golden: /, ""); skipped[$0] }
  /^(ok|FAIL)[ \t].*github.com/ {
    result = $1; package = $2; sub(/^.*mgrpo\/mgrpo\//, "", package)
    for (kind in seen) { printf "%-22s %-34s %6d cases\n", package, kind, seen[kind] | "sort"; total += seen[kind] }
    close("sort"); split("", seen)
    if (result == "FAIL") failed = failed " " package
  }
  END {
    for (s in skipped) print "skipped: " s | "sort"
    close("sort")
    printf "goldens: %d cases%s\n", total, failed ? "; FAILED in" failed : ""
    exit !total
  }' "$log" || { echo "goldens: nothing under $MGRPO_GOLDENS was compared" >&2; status=${status/#0/1}; }
if [ "$status" != 0 ]; then
  grep -B8 -E '^ *--- FAIL|^panic:' "$log" | head -100 >&2 || true
  echo "goldens: the whole log is $log" >&2
fi
exit "$status"
