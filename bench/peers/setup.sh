#!/usr/bin/env bash
# setup.sh: installs the Python packages of requirements.txt in the folder build/peers, and llama.cpp. If packages were added to the list,
# only these are downloaded.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/peers/llama/setup.sh
list=bench/peers/requirements.txt site=build/peers
lists() { cat $list bench/interop/requirements.txt; }
lists | cmp -s - $site/.requirements && exit
packages() { grep -v '^[#-]'; }
if [ -f $site/.requirements ] && ! packages <$site/.requirements | grep -qvxF -f <(lists); then
  mapfile -t missing < <(lists | packages | grep -vxFf $site/.requirements)
  echo "peers: downloading ${missing[*]}"
else
  mapfile -t missing < <(lists | packages)
  rm -rf $site
  echo 'peers: downloading torch, transformers and TRL (2.7 GB, 4.2 GB installed)'
fi
if [ ${#missing[@]} -gt 0 ]; then
  rm -rf $site.part
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
    --only-binary=:all: --target $site.part "${missing[@]}"
  mkdir -p $site
  cp -al --remove-destination $site.part/. $site/
  rm -rf $site.part
fi
lists >$site/.requirements
