"""Installs what CMake built into the virtual environment that runs this script, as pip would.

usage: .venv/bin/python scripts/install_into_venv.py BUILD_FOLDER

Called by scripts/build after every build: pip would configure and compile a second time. Files come from the install
component "python"; the metadata is made by the build backend from pyproject.toml, so that `pip show` and
`pip uninstall` work; files of an earlier build that are no longer part of weft are removed.
"""

import base64
import compileall
import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = Path(sysconfig.get_path("purelib"))
SCRIPTS = Path(sysconfig.get_path("scripts"))

CONSOLE_SCRIPT = """#!{python}
import sys

from weft._cli import main

sys.exit(main())
"""


def install_files(build_folder: Path) -> list[Path]:
    """Copies what changed; gives the paths of all files of the package."""
    result = subprocess.run(
        ["cmake", "--install", build_folder, "--component", "python", "--prefix", SITE],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode != 0:
        sys.exit(result.stdout)
    manifest = (build_folder / "install_manifest_python.txt").read_text().split("\n")
    files = [Path(line) for line in manifest if line]
    keep = set(files)
    for path in (SITE / "weft").rglob("*"):
        if path.is_file() and path not in keep and "__pycache__" not in path.parts:
            path.unlink()
    # As pip does: without it every process of a session would compile these sources again if bytecode is not written.
    compileall.compile_dir(SITE / "weft", quiet=1)
    return files


def metadata_is_current(stamp: Path) -> bool:
    sources = [ROOT / "pyproject.toml", ROOT / "VERSION", ROOT / "README.md", Path(__file__)]
    return stamp.exists() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources)


def install_metadata() -> Path:
    """The dist-info folder and bin/weft."""
    from scikit_build_core.build import prepare_metadata_for_build_wheel

    for old in SITE.glob("weft-*.dist-info"):
        shutil.rmtree(old)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            name = prepare_metadata_for_build_wheel(folder)
        shutil.copytree(Path(folder) / name, SITE / name)
    (SITE / name / "INSTALLER").write_text("weft's make build\n")
    script = SCRIPTS / "weft"
    script.write_text(CONSOLE_SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    return SITE / name


def record_line(path: Path) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{os.path.relpath(path, SITE)},sha256={digest},{path.stat().st_size}"


def main() -> None:
    files = install_files(Path(sys.argv[1]).resolve())
    found = list(SITE.glob("weft-*.dist-info"))
    if len(found) == 1 and metadata_is_current(found[0] / "METADATA"):
        folder = found[0]
    else:
        folder = install_metadata()
    record = folder / "RECORD"
    everything = [*files, SCRIPTS / "weft", *(path for path in folder.rglob("*") if path.is_file() and path != record)]
    if not record.exists() or any(path.stat().st_mtime > record.stat().st_mtime for path in everything):
        lines = [record_line(path) for path in everything]
        record.write_text("\n".join([*lines, f"{folder.name}/RECORD,,"]) + "\n")


if __name__ == "__main__":
    main()
