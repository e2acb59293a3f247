"""`weft run`: programs that say `import ray`, unchanged, on weft.

The program runs in a fresh interpreter that replaces this process, so that its `__main__`, arguments, tracebacks,
signals and exit code are those of plain `python`. What is different is in the environment, and is inherited by all that
the program starts, notebook kernels included: PYTHONPATH begins with a folder in which `ray` is weft.compat.ray, and
WEFT_RAY_API says which of Ray's interfaces is meant. Workers get both from the driver.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]

_HELP = """usage: weft run [--ray-api=VERSION] [PROGRAM [ARGUMENT ...]]

Runs a Python program in which `import ray` gives weft.

  PROGRAM              script.py, or -m MODULE, or -c CODE; none: a Python shell. Python's own options may come before
  --ray-api=VERSION    2 (default, or $WEFT_RAY_API): as Ray is today; 0.6: as Ray was in 2018
"""


def main(arguments: list) -> int:
    """Become the interpreter that runs the program. Returns only if that is not possible."""
    version = None
    while arguments and arguments[0].startswith("--"):
        option, equals, value = arguments[0].partition("=")
        if option == "--help":
            print(_HELP, end="")
            return 0
        if option != "--ray-api":
            return _refuse(f"there is no option {option!r}; it is --ray-api=VERSION, and the program comes after it")
        arguments = arguments[1:]
        if not equals:
            if not arguments:
                return _refuse("--ray-api needs a version: --ray-api=0.6")
            value, arguments = arguments[0], arguments[1:]
        version = value
    if arguments[:1] == ["-h"]:
        print(_HELP, end="")
        return 0

    from .compat import _finder

    version = _finder.version_of(os.environ) if version is None else version
    if version not in _finder.VERSIONS:
        return _refuse(f"there is no Ray interface {version!r}; known are {' and '.join(_finder.VERSIONS)}")
    foreign = _finder.foreign_ray()
    if foreign is not None:
        return _refuse(_finder.describe_foreign(foreign))
    path = [_finder.FOLDER, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    os.environ[_finder.VARIABLE] = version
    if not sys.executable:
        return _refuse("this interpreter does not know where it is (sys.executable is empty)")
    sys.stdout.flush()
    try:
        os.execv(sys.executable, [sys.executable, *arguments])
    except OSError as error:
        return _refuse(f"cannot start {sys.executable}: {error.strerror}")


def _refuse(why: str) -> int:
    print(f"weft run: {why}", file=sys.stderr)
    return 2
