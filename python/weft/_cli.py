"""`weft` on the command line: becomes the C++ program that is installed inside the package."""

import os
import sys
from pathlib import Path


def program() -> str:
    """The path of the C++ program, also the one that `init` starts as node daemon."""
    return str(Path(__file__).resolve().parent / "_bin" / "weft")


def main() -> int:
    path = program()
    # The program starts Python for `weft run`: it must be the one that this weft is installed in.
    os.environ["WEFT_PYTHON"] = sys.executable
    try:
        os.execv(path, ["weft", *sys.argv[1:]])
    except OSError as error:
        print(f"weft: cannot run {path}: {error.strerror}; reinstall weft", file=sys.stderr)
        return 1
