#!/usr/bin/env bash
# test.sh: installs the newest wheel of dist/ into a new environment and trains there, with the libraries of its dependencies alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
wheel=$(find dist -name "mgrpo-*.whl" -printf "%T@ %p\n" | sort -n | tail -1 | cut -d" " -f2)
rm -rf build/wheel
python3 -m venv build/wheel
build/wheel/bin/pip install --quiet --disable-pip-version-check --no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 "$wheel"
cd /
PATH=$OLDPWD/build/wheel/bin:$PATH
libraries=$(ldd "$OLDPWD"/build/wheel/lib/python3*/site-packages/mgrpo/bin/mgrpo | grep -E 'lib(mgrpo|torch|c10)')
if echo "$libraries" | grep -v "$OLDPWD/build/wheel/"; then
  echo 'wheel: found outside of the environment' >&2
  exit 1
fi
python3 -I "$OLDPWD/deploy/wheel/test.py" "$OLDPWD/.ci/quickstart-small"
