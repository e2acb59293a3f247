"""Fetches Caffe 1.0 for the CPU, compiles weft's C interface to it, and prints the folder: include/ and lib/.

    python -m weft.compat.caffe.install

Neither PyPI nor Debian has Caffe. Maven's central repository has it compiled for x86-64, with OpenCV, OpenBLAS and HDF5
in jars of their own: a download of 51 MB, unpacked 69 MB in ~/.cache/weft (XDG_CACHE_HOME), or in WEFT_CAFFE. It needs
Maven, g++ and Boost's headers; Maven's own settings (mirrors, proxies) apply. What is there already is not fetched
again. weft.compat.caffe looks for it in the same folder, and examples/caffe is compiled with it.

Run as a file by scripts/caffe, before weft is built: it must not import weft.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["InstallError", "folder", "install"]

_JARS = ("caffe:1.0-1.5.8", "opencv:4.6.0-1.5.8", "openblas:0.3.21-1.5.8", "hdf5:1.12.2-1.5.8")
# Only what libcaffe.so needs, and the headers with which the shim is compiled.
_KEPT = re.compile(
    r"org/bytedeco/(?:caffe/linux-x86_64/(?P<header>include/(?:caffe|glog|gflags|google)/.*)"
    r"|openblas/linux-x86_64/(?P<blas>include/.*)"
    r"|\w+/linux-x86_64/(?P<library>libcaffe\.so\.[\d.]+|libopencv_(?:core|imgproc|imgcodecs)\.so\.\d+"
    r"|libopenblas\.so\.\d+|libgfortran\.so\.\d+|libquadmath\.so\.\d+|libhdf5(?:_hl)?\.so\.\d+))$"
)
_SHIM = Path(__file__).with_name("caffe_shim.cc")
_HEADER = _SHIM.with_suffix(".h")
_ABSENT = 77  # as in Automake: this cannot be had here


class InstallError(RuntimeError):
    """What is missing, and what the user can do."""


def folder() -> str:
    """Where Caffe is, or will be."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("WEFT_CAFFE") or os.path.join(cache, "weft", "caffe-1.0")


def supported() -> bool:
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def install() -> Path:
    """Fetch and compile what is not there yet."""
    target = Path(folder()).absolute()
    target.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several programs may ask at once: one fetches, the others wait
        fetched = (target / "complete").exists()
        # The shim is compiled again when it has changed: the folder is shared by all versions of weft.
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in (_HEADER, _SHIM, Path(__file__)))).hexdigest()
        stamp = target / "interface" / "hash"
        compiled = stamp.exists() and stamp.read_text() == digest
        _check_tools(fetch=not fetched, compile=not (fetched and compiled))
        if not fetched:
            _fetch(target)
        if not compiled:
            _compile(target)
            stamp.write_text(digest)
    return target


def _check_tools(fetch: bool, compile: bool) -> None:
    """Name all that is missing at once."""
    missing = {}
    if fetch and not shutil.which("mvn"):
        missing["Maven (mvn)"] = "maven"
    if compile and not shutil.which("g++"):
        missing["g++"] = "g++"
    elif compile:
        look = ["g++", "-x", "c++", "-E", "-"]
        if subprocess.run(look, input=b"#include <boost/shared_ptr.hpp>", capture_output=True).returncode != 0:
            missing["the headers of Boost (boost/shared_ptr.hpp)"] = "libboost-dev"
    if missing:
        packages = " ".join(missing.values())
        raise InstallError(f"these are missing: {', '.join(missing)}; on Debian: apt-get install {packages}")


def _run(command: list, failure: str) -> None:
    """Raise an error that ends with what the command has said."""
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if ran.returncode != 0:
        said = re.sub(r"\x1b\[[\d;]*m", "", ran.stdout.decode(errors="replace")).strip()
        raise InstallError(f"{failure} (exit status {ran.returncode})\n{said}")


def _fetch(target: Path) -> None:
    print(f"weft: fetching Caffe 1.0 with OpenCV, OpenBLAS and HDF5 (51 MB) into {target}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="parts.", dir=target) as parts:
        for jar in _JARS:
            copy = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", f"-Dmaven.repo.local={parts}/repository"]
            copy += ["dependency:copy", "-Dtransitive=false", f"-DoutputDirectory={parts}"]
            copy += [f"-Dartifact=org.bytedeco:{jar}:jar:linux-x86_64"]
            _run(copy, f"Maven could not fetch org.bytedeco:{jar}")
        for path in sorted(Path(parts).glob("*.jar")):
            with zipfile.ZipFile(path) as archive:
                _unpack(archive, target)
    # highgui needs GTK; libcaffe.so is linked to it, but never calls it.
    highgui = "libopencv_highgui.so.406"
    command = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{highgui}", "-o", target / "lib" / highgui]
    _run([*command, "-x", "c", "/dev/null"], "g++ could not make a library")
    (target / "complete").touch()


def _unpack(archive: zipfile.ZipFile, target: Path) -> None:
    for name in archive.namelist():
        found = _KEPT.match(name)
        if not found or name.endswith("/") or ".." in name.split("/"):
            continue  # also if it would lie outside the folder
        path = target / (found["header"] or found["blas"] or "lib/" + found["library"])
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, open(path, "wb") as copy:
            shutil.copyfileobj(source, copy)


def _compile(target: Path) -> None:
    library = target / "lib" / "libcaffe_shim.so"
    command = ["g++", "-std=c++14", "-O2", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=0", "-DCPU_ONLY"]
    command += ["-isystem", target / "include", _SHIM, "-o", f"{library}.new"]
    command += ["-L", target / "lib", "-l:libcaffe.so.1.0.0", "-Wl,-rpath,$ORIGIN", "-Wl,-soname,libcaffe_shim.so"]
    # Inline functions of the headers name functions of protobuf that may be hidden in libcaffe.so; none is called.
    command += ["-Wl,--unresolved-symbols=ignore-in-shared-libs"]
    _run(command, f"{_SHIM} could not be compiled")
    (target / "interface").mkdir(exist_ok=True)
    shutil.copyfile(_HEADER, target / "interface" / _HEADER.name)
    os.replace(f"{library}.new", library)  # processes that have loaded the former one keep it


def main(arguments: list) -> int:
    if arguments in (["-h"], ["--help"]):
        print((__doc__ or "").rpartition("\n\n")[0])
        return 0
    if arguments:
        print("weft.compat.caffe.install: takes no arguments; WEFT_CAFFE names the folder", file=sys.stderr)
        return 2
    if not supported():
        print("weft.compat.caffe.install: Caffe is compiled for Linux on x86-64 only", file=sys.stderr)
        return _ABSENT
    try:
        print(install())
    except (OSError, InstallError, zipfile.BadZipFile) as error:
        print(f"weft.compat.caffe.install: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
