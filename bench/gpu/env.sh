# env.sh, to be sourced in the repository's root: unpacks build/gpu where only the archive came along, finds torch
# and a driver, and sets $pack, $results and the library path.
pack=$PWD/build/gpu
[ -d "$pack" ] || { [ -f "$pack.tar.xz" ] && tar -C build -xJf "$pack.tar.xz"; } ||
  { echo 'no build/gpu: make build CUDA=1 makes it, on a machine with Go and a network' >&2; exit 1; }
command -v nvidia-smi >/dev/null || { echo 'no nvidia-smi: this machine has no NVIDIA driver' >&2; exit 1; }
torch=$(python3 -c 'import os, torch
want = "2.11.0"
assert torch.__version__.split("+")[0] == want, f"torch {want} is needed, found {torch.__version__}"
assert torch.cuda.is_available(), "torch sees no GPU"
print(os.path.join(os.path.dirname(torch.__file__), "lib"))')
export LD_LIBRARY_PATH=$pack/lib:$torch:${torch%/torch/lib}/nvidia/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
results=${OUT:-$PWD/build/gpu-results}
mkdir -p "$results"
