"""The Python side of a worker process: from the zygote it is forked from to its end.

A worker learns about the driver's interpreter from the environment variable WEFT_DRIVER (`describe_driver`).
"""

from __future__ import annotations

import os
import sys

__all__ = ["ZYGOTE_PROGRAM", "absolute_path", "describe_driver", "import_the_rest", "main", "prepare_zygote"]

_EXIT_SECONDS = 0.5  # for exit handlers of user code: everything must be gone a second after shutdown

# What `python -c` runs as zygote. The driver's path is in place before anything else is imported, so that neither a
# file in the working directory nor another installation of weft comes between. Every first task waits for this
# program: the separators are control characters because json would take milliseconds to import.
ZYGOTE_PROGRAM = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import os; "
    "sys.path[:] = os.environ['WEFT_DRIVER'].partition('\\x1e')[0].split('\\x1f'); "
    "from weft import _worker; _worker.prepare_zygote(); from weft._zygote import main; main()"
)


driver = ""  # in a zygote and in workers: what the driver said


def describe_driver(namespace: str = "") -> str:
    """What a worker needs to know of the driver and its interpreter. Called by init."""
    argv = [str(item).encode("utf-8", "backslashreplace").decode() for item in getattr(sys, "argv", [])]
    path = filter(is_text, absolute_path(sys.path))
    return ("\x1f".join(path) + "\x1e" + namespace + "\x1e" + "\x1f".join(argv)).replace("\0", "")


def is_text(text: str) -> bool:
    """Whether it can be sent to the daemon as UTF-8."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def absolute_path(path) -> list:
    """sys.path for a process with another working directory; "" is the present one."""
    return list(dict.fromkeys(_absolute(entry) for entry in path if isinstance(entry, str)))


def _absolute(entry: str) -> str:
    try:
        return os.path.abspath(entry)
    except OSError:
        return entry or "/"  # the working directory was removed


def prepare_zygote() -> None:
    """Take over what the driver said, and import what every worker needs, once for all of them."""
    global driver
    driver = os.environ.pop("WEFT_DRIVER")
    _, namespace, argv = driver.split("\x1e", 2)
    sys.argv[:] = argv.split("\x1f")
    if "WEFT_RAY_API" in os.environ:  # the driver was started by `weft run`: `import ray` gives weft here as well
        from .compat import _finder

        _finder.prepare_workers()
        # Programs for Ray define functions that need cloudpickle, and measure their first tasks: better once for all
        # workers before they are forked than by each of them while it is timed.
        import_the_rest()
    import atexit  # noqa: F401
    import faulthandler  # noqa: F401
    import signal  # noqa: F401

    from . import _api, _errors, _functions, _stacks  # noqa: F401

    _api.set_namespace(namespace)


def import_the_rest() -> None:
    """What many workers need, but not a first task of a plain function: done by the zygote when it is quiet."""
    from . import _serialization

    _serialization.import_ahead()


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

    # A fresh, empty __main__: the zygote's own module must not look like the user's program.
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    # Lines reach the driver when they are written, in the encoding that it expects, and no character makes print raise.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
            _name_printers(stream)
    # The stack of a task that segfaults, shown at the driver.
    if sys.stderr is not None:
        faulthandler.enable(file=sys.stderr, all_threads=False)
    # Ctrl-C reaches every process of the terminal; the driver decides what it means. A handler instead of SIG_IGN,
    # so that programs started by tasks are not deaf to it.
    signal.signal(signal.SIGINT, lambda signum, frame: None)

    from . import _api, _core, _functions, _stacks

    # Sent by our own process when what it runs is cancelled.
    signal.signal(_core._interrupt_signal(), _raise_if_cancelled)

    _stacks.listen()
    _api.install_fork_hooks()
    _functions.set_worker_path(sys.path)


def _name_printers(stream) -> None:
    """Have the stream say which task prints (src/runtime/output_marks.h). In its own buffer, and so exactly where the
    task's text begins."""
    from . import _core

    plain = stream.write
    mark_before_text = _core._mark_before_text  # type: ignore[attr-defined]
    is_stderr = stream is sys.stderr

    def write(text):
        mark = mark_before_text(is_stderr)
        if mark is not None:
            plain(mark)
        return plain(text)

    stream.write = write


def _raise_if_cancelled(signum, frame) -> None:
    from . import _core

    if _core._take_interrupt():
        from ._actor_worker import Cancelled

        raise Cancelled


_visible_gpus = None  # CUDA_VISIBLE_DEVICES as the driver had it
_assigned_gpus: list = []


def set_gpus(numbers: list) -> None:
    """The tasks that follow have these GPUs. Called by C++ when a lease begins."""
    global _assigned_gpus, _visible_gpus
    if _visible_gpus is None:
        _visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if numbers == _assigned_gpus:
        return
    _assigned_gpus = numbers
    devices = [device for device in _visible_gpus.split(",") if device]
    # If the driver may use only some devices, the numbers count among those.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
        devices[number] if number < len(devices) else str(number) for number in numbers
    )


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
