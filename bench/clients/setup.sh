#!/usr/bin/env bash
# setup.sh: installs the Python packages of requirements.txt in the folder build/clients, which is complete or absent.
set -euo pipefail
cd "$(dirname "$0")/../.."
lists=(bench/clients/requirements.txt examples/langgraph/requirements.txt) site=build/clients
cat "${lists[@]}" | cmp -s - $site/.requirements && exit
echo 'clients: downloading openai, LangGraph and smolagents'
rm -rf $site $site.part
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
  --only-binary=:all: --target $site.part -r bench/clients/requirements.txt
cat "${lists[@]}" >$site.part/.requirements
mv $site.part $site
