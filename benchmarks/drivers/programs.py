"""Finds and runs the compiled benchmark programs. The runner says in WEFT_BENCH_PROGRAMS where they may be."""

from __future__ import annotations

import json
import os
import subprocess

from protocol import Unsupported


def find(name: str) -> str:
    folders = [folder for folder in os.environ.get("WEFT_BENCH_PROGRAMS", "").split(os.pathsep) if folder]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    raise Unsupported(f"{name} is not built (looked in {', '.join(folders) or 'no folder'})")


def run(name: str, *arguments: object) -> dict[str, float]:
    """Runs a program that prints one JSON object of numbers."""
    command = [find(name), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True)
    return json.loads(done.stdout.decode().strip().splitlines()[-1])
