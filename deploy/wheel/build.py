#!/usr/bin/env python3
"""build.py VERSION FOLDER: packs bin/ and build/lib into a Python wheel below FOLDER. LibTorch comes with its dependency torch.

Equal inputs give equal bytes: files are in order and have one date.
"""
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

TAG = "py3-none-manylinux_2_34_x86_64"  # glibc 2.34: what Debian 12's compiler asks for
HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
LIBRARIES = ["libmgrpo_kernels.so", "libmgrpo_torch.so", "libmgrpo_grammar.so", "libmgrpo_kernels_cuda.so", "libmgrpo_torch_cuda.so"]


def version_of(described):
    """Returns a version of Python's kind for one of git's: 0.1.0-5-gabc123 is 0.1.0.dev5+gabc123."""
    found = re.fullmatch(r"v?(\d+\.\d+\.\d+)(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?", described)
    if found is None:
        return "0.1.0.dev0+" + re.sub(r"[^a-z0-9.]", ".", described.lower())
    release, commits, commit, dirty = found.groups()
    local = ".".join(x for x in (commit, dirty and "dirty") if x)
    return release + (f".dev{commits}" if commits else "") + (f"+{local}" if local else "")


def contents(version):
    """Yields the name and the bytes of each file, and whether it is a program."""
    for file in sorted((HERE / "mgrpo").glob("*")):
        if file.suffix in (".py", ".typed"):
            yield f"mgrpo/{file.name}", file.read_bytes(), False
    for name in ("mgrpo", "mgrpo-cuda"):
        if (ROOT / "bin" / name).exists():
            yield f"mgrpo/bin/{name}", (ROOT / "bin" / name).read_bytes(), True
    for name in LIBRARIES:
        if (ROOT / "build/lib" / name).exists():
            yield f"mgrpo/build/lib/{name}", (ROOT / "build/lib" / name).read_bytes(), True
    info = f"mgrpo-{version}.dist-info"
    yield f"{info}/METADATA", f"""Metadata-Version: 2.1
Name: mgrpo
Version: {version}
Summary: Trains teams of language-model agents with M-GRPO
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: torch==2.11.0
Description-Content-Type: text/markdown

""".encode() + (ROOT / "deploy/wheel/README.md").read_bytes(), False
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: mgrpo\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(), False
    yield f"{info}/entry_points.txt", b"[console_scripts]\nmgrpo = mgrpo:main\n", False
    yield f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), False


def main():
    version = version_of(sys.argv[1])
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"mgrpo-{version}-{TAG}.whl"
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        def add(name, data, program):
            entry = zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, data)
        for name, data, program in contents(version):
            add(name, data, program)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        name = f"mgrpo-{version}.dist-info/RECORD"
        add(name, "".join([*record, f"{name},,\n"]).encode(), False)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.0f} MB")


main()
