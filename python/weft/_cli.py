"""`weft` on the command line: `run` and the commands that look at sessions are Python's, all else the C++ program."""

import os
import sys
from pathlib import Path


def program() -> str:
    """The path of the C++ program, also the one that `init` starts as node daemon."""
    return str(Path(__file__).resolve().parent / "_bin" / "weft")


def main() -> int:
    if sys.argv[1:2] == ["run"]:
        from ._run import main as run

        return run(sys.argv[2:])
    if sys.argv[1:2] and sys.argv[1] in ("list", "summary", "status", "logs", "stack", "timeline", "explain"):
        from . import _commands

        return _commands.run(sys.argv[1:])
    path = program()
    try:
        os.execv(path, ["weft", *sys.argv[1:]])
    except OSError as error:
        print(f"weft: cannot run {path}: {error.strerror}; reinstall weft", file=sys.stderr)
        return 1
