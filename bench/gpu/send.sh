#!/usr/bin/env bash
# send.sh pack   makes build/gpu.call of build/gpu: one folder with all that a GPU machine needs. It fails above 60 MiB.
# send.sh away   takes tracked files out of the working tree, except files in the root and in bench/gpu. Git still has them, and files
#                with changes stay.
# send.sh back   puts the tree back, files with the times that they had: nothing is built again.
#
# A remote runner may copy the working tree and named ignored folders, 64 MiB in all, and run one command. For it: pack, away, run
# `build/gpu.call/start first` with the folder build/gpu.call, back. Any other machine takes a copy of the folder:
# `scp -r build/gpu.call HOST: && ssh HOST gpu.call/start first`.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=build/gpu.call times=$(git rev-parse --git-path send-times) limit=$((60 << 20))

pack() {
  [ -e build/gpu/test/kernels_test ] || { echo 'send: no build/gpu: make build CUDA=1 makes it' >&2; exit 1; }
  rm -rf $folder
  mkdir -p $folder
  cp bench/gpu/start $folder/
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --python-version 3.12 \
    --implementation cp --platform manylinux2014_x86_64 -d $folder/wheels -r bench/gpu/requirements.txt
  # Programs share much of their code, farther apart than xz looks by itself.
  {
    find build/gpu -type f -print0
    git ls-files -z -- bench/gpu bench/peers .ci/{quickstart-small,allow-nothing-trained} examples/quickstart/team.yaml kernels/cuda kernels/common kernels/include \
      cuda bindings/kernels bindings/torch/testdata testdata/{models,families,lora,mgrpo,quant} |
      grep -zv '\.go$'
  } | tar --null --files-from=- --owner=0 --group=0 -c | xz -T1 --x86 --lzma2=preset=2,dict=192MiB >$folder/mgrpo.tar.xz
  sum
}

# sum prints the number of bytes to send, and fails above the limit.
sum() {
  local beside call all
  beside=$(git ls-files -z | grep -zE '^([^/]*|bench/[^/]*|bench/gpu/.*)$' | xargs -0 stat -c %s | awk '{ sum += $1 + 1024 } END { print sum }')
  call=$(find $folder -type f -printf '%s\n' | awk '{ sum += $1 + 1024 } END { print sum }')
  all=$((beside + call))
  printf 'send: %d bytes in %s, %d beside it, %d in all of %d\n' "$call" $folder "$beside" $all $limit
  [ $all -le $limit ] || { echo 'send: too much for one call: leave a test program or a testdata folder out' >&2; exit 1; }
}

away() {
  git ls-files -z | xargs -0 stat --printf '%Y %n\0' >"$times"
  git update-index -q --refresh || true # a file of another time counts as changed until git has read it
  git sparse-checkout set --cone bench/gpu
  git ls-files --others --exclude-standard | sed 's/^/send: travels too, for git does not know it: /'
}

back() {
  local absent
  absent=$(mktemp)
  git ls-files -z -t | grep -z '^S ' >"$absent" || true
  git sparse-checkout disable
  python3 -c 'import os, sys
entries = lambda path: [e for e in open(path).read().split("\0") if e]
times = {name: int(time) for time, name in (e.split(" ", 1) for e in entries(sys.argv[2]))}
for entry in entries(sys.argv[1]):
    name = entry[2:]
    os.utime(name, (times[name], times[name]))' "$absent" "$times"
  rm "$absent" "$times"
}

case ${1-} in
  pack) pack ;;
  away) away ;;
  back) back ;;
  *) sed -n 's/^# \{0,1\}//; 2,/^set/{/^set/!p}' "$0" >&2; exit 2 ;;
esac
