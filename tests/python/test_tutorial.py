"""The programs of examples/tutorial run, each in a process of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from helpers import run_driver

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tutorial"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def test_the_readme_lists_them_all():
    assert [path.name for path in PROGRAMS] == re.findall(r"^\| `(.*?)`", (FOLDER / "README.md").read_text(), re.M)
    assert [path.name[:2] for path in PROGRAMS] == [f"{number:02}" for number in range(1, 13)]


def test_the_readme_in_cpp_lists_them_all():
    # ctest runs them: example.tutorial.01_tasks and so on.
    folder = FOLDER.parent / "cpp" / "tutorial"
    programs = sorted(path.name for path in folder.glob("*.cc"))
    assert programs == re.findall(r"^\| `(.*?)`", (folder / "README.md").read_text(), re.M)
    assert {name[:-3] for name in programs} >= {path.stem for path in PROGRAMS}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program):
    driver = run_driver("", command=[sys.executable, str(program)], seconds=60)
    assert driver.stdout.splitlines()[-1] == "ok"
    assert driver.stderr == ""
