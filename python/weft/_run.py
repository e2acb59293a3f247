"""`weft run`: programs that say `import ray`, unchanged, on weft.

The program runs in a fresh interpreter that replaces this process, so that its `__main__`, arguments, tracebacks,
signals and exit code are those of plain `python`. What is different is in the environment, and is inherited by all that
the program starts, notebook kernels included: PYTHONPATH begins with a folder in which `ray` is weft.compat.ray, and
WEFT_RAY_API says which of Ray's interfaces is meant. For that of 2018, another folder makes `tensorflow` the view of
TensorFlow 1 (weft.compat._tensorflow). Workers get all of it from the driver. With --address, WEFT_ADDRESS is
the cluster, and WEFT_RUN_ADDRESS says that it was chosen here, not by the program.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]

_HELP = """usage: weft run [--address=ADDRESS] [--ray-api=VERSION] [PROGRAM [ARGUMENT ...]]

Runs a Python program in which `import ray` gives weft.

  PROGRAM              script.py, or -m MODULE, or -c CODE; none: a Python shell. Python's own options may come before
  --address=ADDRESS    on the cluster of this head (HOST:PORT), or of this machine (auto). What the program's init says
                       of num_cpus, num_gpus, resources and object_store_memory is ignored: nodes have what they have
  --ray-api=VERSION    2 (default, or $WEFT_RAY_API): as Ray is today; 0.6: as Ray was in 2018, and `import tensorflow`
                       gives TensorFlow 1 where TensorFlow 2 is installed
"""


def main(arguments: list) -> int:
    """Become the interpreter that runs the program. Returns only if that is not possible."""
    version = address = None
    while arguments and arguments[0].startswith("--"):
        option, equals, value = arguments[0].partition("=")
        if option == "--help":
            print(_HELP, end="")
            return 0
        if option not in ("--ray-api", "--address"):
            return _refuse(
                f"there is no option {option!r}; they are --address=ADDRESS and --ray-api=VERSION, and the program "
                "comes after them"
            )
        arguments = arguments[1:]
        if not equals:
            if not arguments:
                needs = "a version: --ray-api=0.6" if option == "--ray-api" else "HOST:PORT or auto"
                return _refuse(f"{option} needs {needs}")
            value, arguments = arguments[0], arguments[1:]
        if option == "--ray-api":
            version = value
        else:
            address = value
    if arguments[:1] == ["-h"]:
        print(_HELP, end="")
        return 0

    from .compat import _finder, _tensorflow

    version = _finder.version_of(os.environ) if version is None else version
    if version not in _finder.VERSIONS:
        return _refuse(f"there is no Ray interface {version!r}; known are {' and '.join(_finder.VERSIONS)}")
    foreign = _finder.foreign_ray()
    if foreign is not None:
        return _refuse(_finder.describe_foreign(foreign))
    if address is not None:
        from ._api import RUN_ADDRESS, check_address

        try:
            if not check_address(address, f"--address={address}"):
                return _refuse("--address is for clusters; leave it out for a private session")
        except ValueError as error:
            return _refuse(str(error))
        os.environ["WEFT_ADDRESS"] = os.environ[RUN_ADDRESS] = address
    ours = [_finder.FOLDER] + [_tensorflow.FOLDER] * (version == "0.6")
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = ours + [entry for entry in others if entry not in (_finder.FOLDER, _tensorflow.FOLDER)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
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
