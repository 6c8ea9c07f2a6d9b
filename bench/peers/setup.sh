#!/usr/bin/env bash
# setup.sh: the Python packages of requirements.txt in build/peers, a folder of their own, complete or not there.
set -euo pipefail
cd "$(dirname "$0")/../.."
list=bench/peers/requirements.txt site=build/peers
lists() { cat $list bench/interop/requirements.txt; }
lists | cmp -s - $site/.requirements && exit
echo 'peers: downloading torch, transformers and TRL (2.7 GB, 4.2 GB installed)'
rm -rf $site $site.part
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
  --only-binary=:all: --target $site.part -r $list
lists >$site.part/.requirements
mv $site.part $site
