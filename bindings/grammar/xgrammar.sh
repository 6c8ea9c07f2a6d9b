#!/usr/bin/env bash
# xgrammar.sh DIR: puts the sources of XGrammar 0.2.8 into DIR, unpacked from its source distribution.
set -euo pipefail
dir=$1 want=0.2.8
if [ -e "$dir/.$want" ]; then exit 0; fi
here=$(cd "$(dirname "$0")" && pwd)
echo "xgrammar: downloading $want (3 MB) into $dir"
rm -rf "$dir.part" && mkdir -p "$dir.part"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --no-binary xgrammar --dest "$dir.part" -r "$here/requirements.txt"
tar -C "$dir.part" --strip-components=1 -xzf "$dir.part/xgrammar-$want.tar.gz"
rm "$dir.part/xgrammar-$want.tar.gz"
touch "$dir.part/.$want"
rm -rf "$dir" && mv "$dir.part" "$dir"
