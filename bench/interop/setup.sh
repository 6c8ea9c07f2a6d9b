#!/usr/bin/env bash
# setup.sh: installs the Python packages of requirements.txt in the folder build/interop, which is complete or absent, with the torch of
# build/site. This torch has no CUDA libraries, and libtorch_python does not load without them. A library next to it defines the missing
# symbols; a call of one of them ends with an illegal instruction.
set -euo pipefail
cd "$(dirname "$0")/../.."
list=bench/interop/requirements.txt here=build/interop site=build/site
if cmp -s $list $here/.requirements && [ -e $here/torch/version.py ]; then exit; fi

python=$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))')
[ -e "$site/torch/_C.$python.so" ] || { echo "interop: torch of $site is for another Python than python3, $python: put Python 3.11 first on the PATH" >&2; exit 1; }
[ -e $site/torch/lib/libtorch_python.so ] || { echo "interop: $site has LibTorch without its Python part: remove it, then run make setup" >&2; exit 1; }
echo 'interop: downloading transformers, peft and llama.cpp (85 MB)'
rm -rf $here $here.part
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
  --only-binary=:all: --target $here.part -r $list
for package in torch torchgen nvidia; do cp -as "$(realpath $site)/$package/" $here.part/$package; done
cp -as "$(realpath $site)"/torch-*.dist-info $here.part/

library=$here.part/torch/lib/libtorch_python.so
mapfile -t absent < <(ldd $library | awk '/not found/ { print $1 }' | sort -u)
link() { gcc -shared -z noexecstack -x assembler -Wl,--version-script=<(echo 'libcudnn.so.9 { *; };') -o $here.part/torch/lib/absent.so -; }
if [ ${#absent[@]} -gt 0 ]; then
  link </dev/null
  for name in "${absent[@]}"; do ln -s absent.so $here.part/torch/lib/"$name"; done
  # A typeinfo contains its name, because types are registered by name. The checker of Python's lock is set when the library is loaded.
  ldd -r $library 2>&1 | awk '
    $1 != "undefined" || $3 ~ /^_?Py/ { next }
    { sub(/,$/, "", $3); name = $3; print ".globl " name }
    name ~ /^_ZTI/ { print ".data\n" name ": .quad _ZTVN10__cxxabiv117__class_type_infoE + 16, 1f\n1: .asciz \"" substr(name, 5) "\"\n.balign 8"; next }
    name ~ /^_ZTV/ { print ".data\n" name ": .skip 512"; next }
    name ~ /get_gil_checker/ { print ".text\n" name ": lea checker(%rip), %rax\nret\n.local checker\n.comm checker, 64, 8"; next }
    { print ".text\n" name ": ud2" }' | link
fi
cp $list $here.part/.requirements
mv $here.part $here
