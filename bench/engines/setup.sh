#!/usr/bin/env bash
# setup.sh FOLDER: a virtual environment with vLLM for CPUs in FOLDER/vllm, complete or not there.
set -euo pipefail
list=$(cd "$(dirname "$0")" && pwd)/vllm.txt site=$1/vllm
cmp -s "$list" "$site/.requirements" && exit
echo 'engines: downloading vLLM for CPUs and PyTorch (5.9 GB installed)'
rm -rf "$site"
mkdir -p "$1"
python3.11 -m venv "$site" 2>/dev/null || python3 -m venv "$site"
"$site/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes -r "$list"
cp "$list" "$site/.requirements"
