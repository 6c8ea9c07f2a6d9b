# shellcheck shell=bash
# env.sh, to be sourced in the repository's root: unpacks build/gpu.parts into build/gpu where only those came along, finds
# torch and a driver, and sets $pack and the library path.
pack=$PWD/build/gpu
mapfile -t parts < <(ls build/gpu.parts/* 2>/dev/null)
[ ${#parts[@]} -gt 0 ] || { echo 'no build/gpu.parts: make build CUDA=1 makes it, on a machine with Go and a network' >&2; exit 1; }
[ ${#parts[@]} = "${parts[0]##*-}" ] || { echo "build/gpu.parts has ${#parts[@]} parts of ${parts[0]##*-}: bring the others, too" >&2; exit 1; }
pack_id=$(cat "${parts[@]}" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$pack/id" 2>/dev/null)" != "$pack_id" ]; then
  rm -rf "$pack"
  cat "${parts[@]}" | python3 -c 'import sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall("build", filter="data")'
  echo "$pack_id" >"$pack/id"
fi
command -v nvidia-smi >/dev/null || { echo 'no nvidia-smi: this machine has no NVIDIA driver' >&2; exit 1; }
torch=$(python3 -c 'import os, torch
want = "2.11.0"
assert torch.__version__.split("+")[0] == want, f"torch {want} is needed, found {torch.__version__}"
assert torch.cuda.is_available(), "torch sees no GPU"
print(os.path.join(os.path.dirname(torch.__file__), "lib"))')
export LD_LIBRARY_PATH=$pack/lib:$torch:${torch%/torch/lib}/nvidia/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
