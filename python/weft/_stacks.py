"""Where every thread of a process is, asked from outside, even while it is blocked in C or asleep.

Drivers and workers register faulthandler for a real-time signal, with a memfd as its file: `listen` there, `dump` here.
Nothing is sent to a process that does not catch the signal, as that would end it.
"""

from __future__ import annotations

import os

__all__ = ["dump", "listen"]

_MEMFD = "weft-stacks"
# Of the real-time signals that user programs take, low and high ones are the usual: this is in between.
_SIGNAL_OFFSET = 11
_file = None


def _signal_number() -> int:
    import signal

    return int(signal.SIGRTMIN) + _SIGNAL_OFFSET


def listen() -> None:
    """Make this process answer. Does nothing if the signal is taken already, or it cannot be done here."""
    global _file
    if _file is not None:
        return
    import faulthandler
    import signal

    number = _signal_number()
    try:
        if signal.getsignal(number) is not signal.SIG_DFL:
            return
        made = os.memfd_create(_MEMFD, os.MFD_CLOEXEC)
        # Opened once more to append: the process that asks empties the file, and each dump begins at its end.
        fd = os.open(f"/proc/self/fd/{made}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.close(made)
        faulthandler.register(number, file=fd, all_threads=True, chain=False)
        _file = fd
    except (AttributeError, OSError, RuntimeError, ValueError):
        pass  # stacks are a help, not a need


def dump(pid: int, timeout: float = 1.0) -> str:
    """The stacks of a process that listens. Raises LookupError with the reason if it does not answer."""
    import fcntl
    import time

    number = _signal_number()
    path = _find_file(pid)
    if path is None or not _catches(pid, number):
        raise LookupError(f"process {pid} does not tell its stack: it is no Python process of weft, or not ready yet")
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise LookupError(f"process {pid} cannot be looked at: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # one process asks at a time
        os.ftruncate(file, 0)
        try:
            os.kill(pid, number)
        except OSError as error:
            raise LookupError(f"process {pid} has ended") from error
        # Whole when it has stopped growing: it is written at once, in well under a millisecond.
        deadline = time.monotonic() + timeout
        size = quiet = 0
        while time.monotonic() < deadline and quiet < 3:
            time.sleep(0.01)
            now = os.fstat(file).st_size
            quiet = quiet + 1 if now == size and now > 0 else 0
            size = now
        if size == 0:
            raise LookupError(
                f"process {pid} did not answer within {timeout:g} s: it is stopped, or blocks all signals"
            )
        text = os.pread(file, size, 0).decode("utf-8", "replace")
        os.ftruncate(file, 0)
        return text
    finally:
        os.close(file)


def _find_file(pid: int):
    directory = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            try:
                if os.readlink(path).startswith(f"/memfd:{_MEMFD} "):
                    return path
            except OSError:
                pass
    except OSError:
        pass
    return None


def _catches(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        pass
    return False
