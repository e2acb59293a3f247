"""The programs of ray_programs/ under `weft run`: what they print is what Ray 2.60 printed, line by line.

The files *.txt hold what Ray printed (its own log lines left out). Where weft differs on purpose, DIFFERENCES says so,
and docs/user/coming_from_ray.md says why.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from helpers import run_driver

FOLDER = Path(__file__).resolve().parent / "ray_programs"
PROGRAMS = sorted(FOLDER.glob("*.py"))
WEFT = str(Path(sysconfig.get_path("scripts")) / "weft")

DIFFERENCES = {
    # Ray cannot rebuild an exception whose constructor takes other arguments than its `args`.
    "custom exception raises RayError": "custom exception -> (7, True)",
    # Ray's cancel waits for the sleep to end by itself; weft ends it.
    "cancelled while it ran raises TimeoutError GetTimeoutError RayError": (
        "cancelled while it ran raises TaskCancelledError RayError"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_prints_what_ray_printed(program):
    ray_printed = program.with_suffix(".txt").read_text().splitlines()
    driver = run_driver("", command=[WEFT, "run", str(program)], seconds=90)
    assert driver.stdout.splitlines() == [DIFFERENCES.get(line, line) for line in ray_printed]
