"""The program of examples/learning that uses TensorFlow runs, and reaches its bar."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers import run_driver

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "learning"


def test_policy_gradient_reaches_its_bar(tmp_path):
    # A program below its bar ends with exit code 1.
    picture = tmp_path / "picture.png"
    program = [sys.executable, str(FOLDER / "policy_gradient.py"), "--picture", str(picture)]
    driver = run_driver("", command=program, seconds=300)
    assert driver.stdout.splitlines()[-1] == "ok"
    assert picture.read_bytes().startswith(b"\x89PNG")
