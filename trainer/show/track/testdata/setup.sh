#!/usr/bin/env bash
# setup.sh: installs the Python packages of requirements.txt in the folder build/tracking, which is complete or absent.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
list=trainer/show/track/testdata/requirements.txt site=build/tracking
cmp -s $list $site/.requirements && exit
echo 'tracking: downloading wandb, MLflow and TensorBoard (300 MB installed)'
rm -rf $site $site.part
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
  --only-binary=:all: --target $site.part -r $list
cp $list $site.part/.requirements
mv $site.part $site
