"""Finds, runs and asks the compiled benchmark programs. The runner says in WEFT_BENCH_PROGRAMS where they may be."""

from __future__ import annotations

import json
import os
import subprocess

from protocol import Unsupported, note


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


class Conversation:
    """A C++ program that holds a session and answers lines (cpp/conversation.h) until it is stopped."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def ask(self, kind: str, size: int, min_seconds: float) -> dict[str, float]:
        self._process.stdin.write(f"{kind} {size} {min_seconds}\n".encode())
        self._process.stdin.flush()
        for line in self._process.stdout:  # Ray prints the output of its workers here, too.
            if line.startswith(b'{"value": '):
                return json.loads(line)
        raise RuntimeError(f"the C++ program ended with {self._process.wait()} when asked for {kind}")

    def stop(self) -> None:
        self._process.stdin.close()
        for line in self._process.stdout:
            note(line.decode(errors="replace").rstrip())
        self._process.wait()
