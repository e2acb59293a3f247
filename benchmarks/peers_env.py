"""Makes the environment of the peers: a virtual environment with the newest Ray, joblib, Dask from PyPI.

    python benchmarks/peers_env.py [--refresh]

It lies outside the tracked files, in build/peers-venv, or where WEFT_PEERS_VENV says, so that nothing of theirs can
touch weft's own environment. Made once; --refresh upgrades it. Downloads a few hundred megabytes.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    print(ensure(sys.executable, refresh="--refresh" in sys.argv[1:]))
