#!/usr/bin/env bash
# tools.sh: installs NVIDIA's cuobjdump and nvdisasm, 5 MB, in build/cubin-tools.
set -euo pipefail
cd "$(dirname "$0")/../.."
site=build/cubin-tools
if cmp -s bench/cubins/requirements.txt $site/requirements.txt; then exit 0; fi
rm -rf $site.part
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --require-hashes --only-binary=:all: \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --target $site.part -r bench/cubins/requirements.txt
chmod +x $site.part/nvidia/cu13/bin/{cuobjdump,nvdisasm}
cp bench/cubins/requirements.txt $site.part/
rm -rf $site && mv $site.part $site
