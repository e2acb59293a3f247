"""scripts/learning-env and scripts/python39: what they say where an environment cannot be had. Nothing is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "scripts" / "learning-env").exists() or not (ROOT / ".venv" / "bin" / "weft").exists(),
    reason="needs the repository and the .venv that `make build` fills",
)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run(*command, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("name", ["caffe", "caffe2", "caffe2_cpp"])
def test_another_processor(tmp_path, name):
    program(tmp_path / "uname", "echo Linux aarch64")
    done = run("scripts/learning-env", name, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 77
    assert done.stderr == f"weft: there is {name} for Linux on x86-64 only, and this is Linux aarch64\n"


@pytest.mark.parametrize(
    "name, version, newest",
    [
        ("tensorflow", "3.9", "3.13"),
        ("tensorflow", "3.14", "3.13"),
        ("torch", "3.9", "3.14"),
        ("caffe", "3.9", "3.14"),
        ("tianshou", "3.9", "3.14"),
    ],
)
def test_another_python(tmp_path, name, version, newest):
    """A Python that answers what scripts/python and scripts/learning-env ask."""
    program(tmp_path / "uname", "echo Linux x86_64")
    python = program(tmp_path / "python", f'case "$2" in *realpath*) echo "$0" ;; *) echo {version} ;; esac')
    done = run("scripts/learning-env", name, PATH=f"{tmp_path}:{os.environ['PATH']}", PYTHON=str(python))
    assert done.returncode == 77, done.stderr
    words = f"learning-{name}.txt exist for CPython 3.10 to {newest}, and .venv has {version}"
    assert words in done.stderr


def test_python39_is_found_among_those_of_pyenv(tmp_path):
    """A launcher on the PATH that only says that no version is chosen does not count."""
    launcher = "echo 'pyenv: python3.9: command not found' >&2; exit 127"
    program(tmp_path / "bin" / "python3.9", launcher)
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYENV_ROOT": str(tmp_path), "WEFT_PYTHON39": ""}
    if run("bash", "-c", "type -ap python3.9", PATH="/usr/bin:/bin").returncode == 0:
        pytest.skip("there is a python3.9 of the system")
    none = run("scripts/python39", **environment)
    assert none.returncode == 77 and "WEFT_PYTHON39 can name one" in none.stderr
    for version in "3.9.2", "3.9.18", "3.10.1":
        program(tmp_path / "versions" / version / "bin" / "python3.9", f"echo {version}")
    assert run("scripts/python39", **environment).stdout == "3.9.18\n"
