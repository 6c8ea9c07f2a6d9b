#!/usr/bin/env bash
# run.sh: trains the quickstart team for one small step and lets transformers read what came out: the HF folders
# of both agents. INTEROP_MODELS names further folders.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/peers/setup.sh
site=build/peers run=$PWD/build/interop-run

rm -rf "$run"
mapfile -t small < <(tr ' ' '\n' <.ci/quickstart-small)
bin/mgrpo train -c examples/quickstart/team.yaml --set run.dir="$run" "${small[@]}" >build/interop.log ||
  { cat build/interop.log >&2; exit 1; }
mapfile -t folders < <(find "$run" -name config.json -printf '%h\n' | sort)
[ ${#folders[@]} -ge 2 ] || { echo "interop: fewer than two HF folders under $run" >&2; exit 1; }
# PYTHONSAFEPATH: nothing of the current folder is imported.
PYTHONSAFEPATH=1 PYTHONPATH=$site TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 \
  python3 bench/interop/check.py bin/mgrpo "${folders[@]}" ${INTEROP_MODELS:-}
