"""The programs of examples/learning that use PyTorch run, and reach their bars."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import run_driver

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "learning"


@pytest.mark.parametrize("name", ["a3c", "all_reduce", "hyperparameters", "lbfgs", "lenet", "resnet"])
def test_program_reaches_its_bar(name, tmp_path):
    # A program below its bar ends with exit code 1.
    picture = tmp_path / "picture.png"
    program = [sys.executable, str(FOLDER / f"{name}.py"), "--picture", str(picture)]
    driver = run_driver("", command=program, seconds=300)
    assert driver.stdout.splitlines()[-1] == "ok"
    assert picture.read_bytes().startswith(b"\x89PNG")
