#!/usr/bin/env bash
# rehearse.sh: the whole of `build/gpu.call/start first` on the emulated GPU, with small shapes, and then the proof that it fails without
# a GPU. It runs in an empty environment with a PATH of a dozen programs: no Go, git, make, compiler or xz. (A machine of its own,
# made by debootstrap, would take longer than the rehearsal.) Python's torch comes from `make interop`.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD work=$PWD/build/gpu-rehearsal
rm -rf "$work"
mkdir -p "$work/path" "$work/out"
for program in bash cat cut date dirname env grep mkdir mktemp mv nproc rm sha256sum tee touch; do ln -s "$(command -v $program)" "$work/path/$program"; done
# -P: nothing of the current folder is imported. TORCH_USE_RTLD_GLOBAL: libraries of CUDA are not looked for.
# shellcheck disable=SC2016 # the program that is written expands them
printf '#!%s\nexport PYTHONPATH=%s${PYTHONPATH:+:$PYTHONPATH} TORCH_USE_RTLD_GLOBAL=1 PYTHONDONTWRITEBYTECODE=1\nexec %s -P "$@"\n' \
  "$(command -v bash)" "$here/build/interop" "$(python3 -c 'import sys; print(sys.executable)')" >"$work/path/python3"
chmod +x "$work/path/python3"
call() { env -i PATH="$work/path" HOME="$work" OUT="$work/out" MGRPO_CALL_ROOT="$work/root" build/gpu.call/start "$@"; }

status=0
call --emulated "$here/build/emulated" --seconds 1800 first || status=$?
cat "$work/out/call.json"
files=$(find "$work/out" -type f | wc -l)
[ "$files" -le 8 ] || { echo "rehearsal: $files files of results: a machine may give back eight" >&2; exit 1; }
[ $status = 0 ] || { echo "rehearsal: status $status" >&2; exit 1; }
if call first >"$work/none" 2>&1 || ! grep -q 'torch sees no GPU' "$work/none"; then
  cat "$work/none"
  echo 'rehearsal: a machine without a GPU passed' >&2
  exit 1
fi
rm -rf "$work/root"
