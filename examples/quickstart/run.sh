#!/usr/bin/env bash
# Trains the two-agent team and writes its report. Arguments go to `mgrpo train`. An earlier run is kept: the
# next one gets its own folder. RUNS names a parent folder other than runs/.
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=$(realpath -m "${RUNS:-runs}")
dir=$runs/quickstart
for ((n = 2; ; n++)); do
  [ -e "$dir" ] || break
  dir=$runs/quickstart-$n
done
case " $* " in
  *--listen* | *health.address*) listen=() ;;
  *) listen=(--listen 127.0.0.1:0) ;; # at any free port; mgrpo prints the address of the run's page
esac
bin/mgrpo train "${listen[@]}" examples/quickstart/team.yaml --set run.dir="$dir" "$@"
bin/mgrpo report "$dir"
