"""The programs of ray_programs/ under `weft run`: what they print is what Ray 2.60 printed, line by line.

The files *.txt hold what Ray printed (its own log lines left out). Where weft differs on purpose, DIFFERENCES says so,
and docs/user/coming_from_ray.md says why.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest
from helpers import run_driver

FOLDER = Path(__file__).resolve().parent / "ray_programs"
PROGRAMS = sorted(FOLDER.glob("*.py"))
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")

DIFFERENCES = {
    "tasks": {
        # Ray cannot rebuild an exception whose constructor takes other arguments than its `args`.
        "custom exception raises RayError": "custom exception -> (7, True)",
        # Arguments are checked by Python when the task runs, so the TypeError comes with `get`.
        "too few arguments raises TypeError": "too few arguments -> ObjectRef",
        "too many arguments raises TypeError": "too many arguments -> [ObjectRef, ObjectRef]",
        "unknown keyword raises TypeError": "unknown keyword -> ObjectRef",
        # A wrong type is a TypeError.
        "get of a number raises ValueError": "get of a number raises TypeError",
        "a number made remote raises": "a number made remote raises TypeError",
    },
    "actors": {
        # A ValueError and no more.
        "name taken raises ValueError RayError": "name taken raises ValueError",
        # Ray's cancel waits for the sleep to end by itself; weft ends it.
        "cancelled while it ran raises TimeoutError GetTimeoutError RayError": (
            "cancelled while it ran raises TaskCancelledError RayError"
        ),
    },
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_prints_what_ray_printed(program):
    differences = DIFFERENCES.get(program.stem, {})
    ray_printed = program.with_suffix(".txt").read_text().splitlines()
    driver = run_driver("", command=[WEFT, "run", str(program)], seconds=90)
    printed = re.sub(r"ObjectRef\(\w+\)", "ObjectRef", driver.stdout)  # which one does not matter
    assert not set(differences) - set(ray_printed)
    assert printed.splitlines() == [differences.get(line, line) for line in ray_printed]
