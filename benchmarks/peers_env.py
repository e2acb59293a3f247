"""Makes the environment of the peers: a virtual environment with the newest Ray, joblib, Dask from PyPI.

    python benchmarks/peers_env.py [--refresh]

It lies outside the tracked files, in build/peers-venv, or where WEFT_PEERS_VENV says, so that nothing of theirs can
touch weft's own environment. Made once; --refresh upgrades it. Downloads a few hundred megabytes.

Ray's C++ API has an environment of its own, build/peers-cpp-venv or WEFT_PEERS_CPP_VENV: its wheel, ray-cpp, works with
a Ray of the very same version alone, and the newest Ray may have none yet.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = ["ray", "numpy", "joblib", "dask", "distributed", "matplotlib"]

_CHECK = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"


def folder() -> str:
    return os.path.abspath(os.environ.get("WEFT_PEERS_VENV") or os.path.join(REPOSITORY, "build", "peers-venv"))


def python() -> str:
    return os.path.join(folder(), "bin", "python")


def ensure(base_python: str, refresh: bool = False) -> str:
    """The peers' interpreter; makes the environment from `base_python` if it is missing."""
    complete = os.path.exists(python()) and subprocess.run([python(), "-c", _CHECK, *PACKAGES]).returncode == 0
    if not complete or refresh:
        print(f"making the peers' environment in {folder()}: {' '.join(PACKAGES)} from PyPI", flush=True)
        if not os.path.exists(python()):
            subprocess.run([base_python, "-m", "venv", folder()], check=True)
        pip = [python(), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--upgrade"]
        subprocess.run([*pip, *PACKAGES], check=True)
    return python()


def _cpp_environment() -> str:
    named = os.environ.get("WEFT_PEERS_CPP_VENV")
    return os.path.abspath(named or os.path.join(REPOSITORY, "build", "peers-cpp-venv"))


def ray_cpp_folder() -> str:
    """The folder with headers and library of Ray's C++ API; empty if it is not installed."""
    found = glob.glob(os.path.join(_cpp_environment(), "lib", "python*", "site-packages", "ray", "cpp"))
    return next((path for path in found if os.path.exists(os.path.join(path, "lib", "libray_api.so"))), "")


def ensure_ray_cpp(base_python: str, refresh: bool = False) -> str:
    """The interpreter beside Ray's C++ API; tries to make the environment if it is missing. Ends well in any case: not
    every interpreter and machine has a wheel, and ray_cpp_folder says whether this one does."""
    python = os.path.join(_cpp_environment(), "bin", "python")
    if ray_cpp_folder() and not refresh:
        return python
    print(f"making the environment of Ray's C++ API in {_cpp_environment()}: ray-cpp from PyPI", flush=True)
    if not os.path.exists(python):
        subprocess.run([base_python, "-m", "venv", _cpp_environment()], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--upgrade"]
    if subprocess.run([*pip, "ray-cpp"]).returncode == 0:
        version = "import importlib.metadata; print(importlib.metadata.version('ray-cpp'))"
        found = subprocess.run([python, "-c", version], stdout=subprocess.PIPE, check=True).stdout.decode().strip()
        subprocess.run([*pip, f"ray=={found}"])
    return python


if __name__ == "__main__":
    print(ensure(sys.executable, refresh="--refresh" in sys.argv[1:]))
    print(ensure_ray_cpp(sys.executable, refresh="--refresh" in sys.argv[1:]))
