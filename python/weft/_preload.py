"""Modules that are imported once, before workers are forked: what `init` accepts, and what the warm zygote does.

The warm zygote is a second one, which the node daemon starts with the names in WEFT_WARM_MODULES. It must be safe to
fork when it is ready: a module that leaves a thread behind, or opens a GPU, is found out by looking, and the process
begins again without it, by exec, under the same number and with the same socket. See docs/decisions/0022-preload.md.
"""

from __future__ import annotations

import os
import sys

__all__ = ["chosen", "import_modules"]

_VARIABLE = "WEFT_PRELOAD"
_SECONDS_VARIABLE = "WEFT_PRELOAD_SECONDS"
_WARM = "WEFT_WARM_MODULES"
_DAEMON = 3
_MOST_SECONDS = 300  # for all imports; actors wait for them
_ENDING_SECONDS = 0.5  # for threads that have been told to end
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dxg")
_REMEDY = f"Take it out of init(preload=...) or {_VARIABLE}"


# ---- in the driver --------------------------------------------------------------------------------------------------


def chosen(preload) -> list:
    """The names that init was given, or those of the environment."""
    if preload is None:
        text = os.environ.get(_VARIABLE, "")
        names = [name.strip() for name in text.split(",")] if text.strip() else []
        given_by = f"the environment variable {_VARIABLE}={text!r}"
    else:
        if not isinstance(preload, (list, tuple)):
            raise TypeError(f'preload must be a list of names of modules such as ["torch"], not {preload!r}')
        names = list(preload)
        given_by = f"preload={preload!r}"
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{given_by} must hold names of modules, not {name!r}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{given_by} must hold names of modules, which {name!r} is not")
    return list(dict.fromkeys(names))


# ---- in the warm zygote ---------------------------------------------------------------------------------------------


def import_modules(warn) -> None:
    """Import what the daemon has named. Afterwards this process has one thread and no GPU, or has ended because
    nothing is left to import. `warn` tells the driver."""
    import signal
    from importlib import import_module

    names = os.environ.pop(_WARM).split(",")
    environment = dict(os.environ)  # before the modules change it
    # Kills this process if an import hangs. An exec does not restart it.
    if signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        signal.setitimer(signal.ITIMER_REAL, float(environment.get(_SECONDS_VARIABLE, _MOST_SECONDS)))
    imported = []
    for at, name in enumerate(names):
        failed = False
        try:
            import_module(name)
        except BaseException as error:
            failed = True
            warn(
                f"preload: {name} cannot be imported ({type(error).__name__}: {error}), so the session goes on without "
                f"it. {_REMEDY}, or install it for {sys.executable}"
            )
        unfit = _why_not_to_fork()
        if unfit and not failed:
            warn(
                f"preload: {name} {unfit}, which forked workers could not use, so it is not preloaded, and workers "
                f"import it themselves. {_REMEDY}"
            )
        if unfit:
            _begin_again(imported + names[at + 1 :], environment)
        if not failed:
            imported.append(name)
    if not imported:
        os._exit(0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _why_not_to_fork() -> str:
    threads = _threads_that_stay()
    if threads:
        names = _names_of_threads()
        hint = ""
        if "jemalloc_bg_thd" in names:
            hint = "; of pyarrow: JE_ARROW_MALLOC_CONF=background_thread:false in the environment prevents it"
        return f"leaves {threads} thread{'s' * (threads > 1)} behind ({', '.join(names)}{hint}) when it is imported"
    gpu = _open_gpu()
    return f"opens a GPU ({gpu}) when it is imported" if gpu else ""


def _threads_that_stay() -> int:
    """Threads beside this one after a fork. Libraries that can be forked, such as OpenBLAS, end theirs before it and
    start new ones when they need them."""
    if _other_threads() == 0:
        return 0
    import time

    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    deadline = time.monotonic() + _ENDING_SECONDS
    while _other_threads() > 0 and time.monotonic() < deadline:
        time.sleep(0.005)  # one that was joined may be listed a moment longer
    return _other_threads()


def _other_threads() -> int:
    return len(os.listdir("/proc/self/task")) - 1


def _names_of_threads() -> list:
    """As the system shows them."""
    names = set()
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            try:
                with open(f"/proc/self/task/{thread}/comm") as file:
                    names.add(file.read().strip())
            except OSError:
                pass  # it has just ended
    return sorted(names)


def _open_gpu() -> str:
    """The device, if a GPU's driver is in use: what it sets up cannot be used in a forked process."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # that of the folder itself
        if any(device in target for device in _GPUS):
            return target
    return ""


def _begin_again(names: list, environment: dict) -> None:
    if not names:
        os._exit(0)
    from . import _worker

    os.set_inheritable(_DAEMON, True)
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read().split(b"\0")[:-1]
    os.execve(sys.executable, command, {**environment, _WARM: ",".join(names), "WEFT_DRIVER": _worker.driver})
