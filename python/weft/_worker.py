"""The Python side of a worker process: from the fork out of the zygote to its end.

What a worker knows of the driver's interpreter comes in the environment variable WEFT_DRIVER (`describe_driver`).
"""

from __future__ import annotations

import os
import sys

__all__ = ["adopt_driver", "describe_driver", "main"]

_ENVIRONMENT = "WEFT_DRIVER"
_EXIT_SECONDS = 0.5  # for exit handlers of user code: everything must be gone a second after shutdown


def describe_driver() -> str:
    """What a worker needs to know of the driver's interpreter. Called by init."""
    import json

    return json.dumps({"path": absolute_path(sys.path), "argv": [str(item) for item in getattr(sys, "argv", [])]})


def absolute_path(path) -> list:
    """sys.path for a process with another working directory; "" is the present one."""
    return list(dict.fromkeys(os.path.abspath(entry) for entry in path if isinstance(entry, str)))


def adopt_driver() -> None:
    """Take over sys.path and sys.argv of the driver. The zygote calls it before it imports anything of the user's."""
    described = os.environ.pop(_ENVIRONMENT, None)
    if described is None:
        return
    import json

    driver = json.loads(described)
    # What this interpreter has besides stays, behind: the driver may have removed what weft needs.
    sys.path[:] = driver["path"] + [entry for entry in sys.path if entry and entry not in driver["path"]]
    sys.argv[:] = driver["argv"] or [""]


def main(fd: int) -> None:
    """Serve as a worker over this descriptor until told to leave. Never returns."""
    code = 1
    try:
        from . import _core

        _prepare()
        _core.run_worker(fd)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        _leave(code)


def _prepare() -> None:
    import faulthandler
    import signal
    import types

    adopt_driver()
    # A fresh, empty __main__: the zygote's own module must not be taken for the user's program.
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    # Lines reach the driver when they are written, and no character can make print raise.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    # The stack of a task that segfaults, shown at the driver.
    if sys.stderr is not None:
        faulthandler.enable(file=sys.stderr, all_threads=False)
    # Ctrl-C reaches every process of the terminal; the driver decides what it means. A handler instead of SIG_IGN,
    # so that programs started by tasks are not deaf to it.
    signal.signal(signal.SIGINT, lambda signum, frame: None)

    from . import _functions

    _functions.set_worker_path(sys.path)


def _leave(code: int) -> None:
    """Run the exit handlers of user code and flush, but end in time even if they hang or hold the GIL."""
    import atexit
    import faulthandler

    try:
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(_EXIT_SECONDS, exit=True, file=nowhere)
            atexit._run_exitfuncs()  # type: ignore[attr-defined]
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
    except BaseException:
        code = code or 1
    os._exit(code)
