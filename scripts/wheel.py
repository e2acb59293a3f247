"""Packs what CMake built into a wheel for the Python that runs this script.

usage: .venv/bin/python scripts/wheel.py BUILD_FOLDER DESTINATION

`pip wheel .` makes the same from pyproject.toml, and compiles everything again. Files come from the install component
"python", stripped; the metadata is made by the build backend. auditwheel says which systems the wheel runs on, and the
wheel is named after that: nothing has to be copied into it, since it needs only libraries that every system has.
"""

import base64
import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def stage(build_folder: Path, folder: Path) -> Path:
    """Everything but RECORD; gives the folder of the metadata."""
    from scikit_build_core.build import prepare_metadata_for_build_wheel

    command = ["cmake", "--install", build_folder, "--component", "python", "--strip", "--prefix", folder]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit(result.stdout)
    os.chdir(ROOT)
    with contextlib.redirect_stdout(io.StringIO()):
        name = prepare_metadata_for_build_wheel(str(folder))
    return folder / name


def pack(folder: Path, metadata: Path, destination: Path) -> Path:
    """The wheel, named after the tag that its metadata has. The same files give the same bytes."""
    tag = re.search(r"^Tag: (.+)$", (metadata / "WHEEL").read_text(), re.MULTILINE)[1]
    wheel = destination / f"{metadata.name[: -len('.dist-info')]}-{tag}.whl"
    record = f"{metadata.name}/RECORD"
    lines = []
    with zipfile.ZipFile(wheel, "w") as archive:

        def add(name: str, content: bytes, mode: int) -> None:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)

        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            add(name, content, path.stat().st_mode & 0o777)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
        add(record, "".join([*lines, f"{record},,\n"]).encode(), 0o644)
    return wheel


def manylinux_tag(wheel: Path) -> str:
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], stdout=subprocess.PIPE, text=True)
    found = re.search(r'following platform tag:\s+"(manylinux_\w+)"', shown.stdout)
    if shown.returncode != 0 or not found:
        sys.exit(f"weft: auditwheel finds no manylinux tag for the wheel:\n{shown.stdout}")
    return found[1]


def main() -> None:
    build_folder, destination = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "wheel"
        metadata = stage(build_folder, folder)
        plain = pack(folder, metadata, Path(temporary))
        platform = manylinux_tag(plain)
        text = (metadata / "WHEEL").read_text()
        (metadata / "WHEEL").write_text(re.sub(r"^(Tag: \w+-\w+-)\w+$", rf"\g<1>{platform}", text, flags=re.MULTILINE))
        wheel = pack(folder, metadata, destination)
    print(f"weft: {os.path.relpath(wheel)}, {wheel.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
