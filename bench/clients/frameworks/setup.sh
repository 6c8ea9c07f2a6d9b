#!/usr/bin/env bash
# setup.sh: installs the packages of frameworks.txt and crewai.txt in two environments, each complete or absent. CrewAI needs other versions
# of packages that are in both lists.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=bench/clients/frameworks
for list in frameworks crewai; do
  site=build/frameworks
  [ $list = crewai ] && site=build/frameworks-crewai
  cmp -s $here/$list.txt $site/.requirements && continue
  echo "clients: downloading $list"
  rm -rf $site
  python3 -m venv $site
  $site/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: -r $here/$list.txt
  cp $here/$list.txt $site/.requirements
done
