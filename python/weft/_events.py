"""The one Python thread of weft: takes from C++ what needs the interpreter, output of workers and callbacks.

In a driver `init` starts it; in a worker the first `future()` or `await` does. It ends when the session does. It is a
daemon thread that holds no lock while it waits, so it keeps no interpreter from ending.
"""

from __future__ import annotations

import sys
import threading

from . import _core

__all__ = ["OutputPrinter", "ensure_started", "join", "start"]

_LONG_CHUNK = 60_000  # characters: a chunk this long without an end of line is part of a longer line

_lock = threading.Lock()
_thread = None


def start() -> None:
    """Start the thread of a new session; that of the last one may still be busy with what it has to print."""
    global _thread
    with _lock:
        _thread = threading.Thread(target=_run, name="weft-events", daemon=True)
        _thread.start()


def ensure_started() -> None:
    """Start the thread unless it runs."""
    if _thread is None or not _thread.is_alive():
        with _lock:
            if _thread is not None and _thread.is_alive():
                return
        start()


def join(timeout: float) -> None:
    """Wait until everything that was queued when the session stopped is handled, but not for ever."""
    thread = _thread
    if thread is not None and thread is not threading.current_thread():
        thread.join(timeout)


def forget_after_fork() -> None:
    """In a child process the thread does not exist, and the lock may never be released."""
    global _thread, _lock
    _thread = None
    _lock = threading.Lock()


def _run() -> None:
    from . import _stacks

    _stacks.listen()
    printer = OutputPrinter()
    while True:
        event = _core.next_event()
        if event is None:
            return
        if event[0] == "output":
            printer.print(*event[1:])
        else:  # "ready", or "stuck" and why
            callback = event[1]
            try:
                callback(*event[2:])
            except Exception:
                _log_failure(callback)
        del event  # it may hold the last reference to something large


def _log_failure(callback) -> None:
    import logging

    logging.getLogger("weft").exception("a callback raised: %r", callback)


class OutputPrinter:
    """Prints what workers print, each line with its origin before it."""

    def __init__(self):
        self._unfinished = None  # (pid, is_stderr) whose line, too long for one chunk, goes on in its next chunk

    def print(self, pid: int, is_stderr: bool, text: str, name: str = "") -> None:
        """Write whole lines to the present sys.stdout or sys.stderr. Never raises."""
        if not text:
            return
        origin = (pid, is_stderr)
        prefix = f"({name or 'worker'} pid={pid}) " if pid else ""  # weft's own words have no process
        continues = self._unfinished == origin
        before = "" if continues else prefix
        if self._unfinished is not None and not continues:
            before = "\n" + before
        goes_on = not text.endswith("\n")
        lines = (text if goes_on else text[:-1]).replace("\n", "\n" + prefix)
        self._unfinished = origin if goes_on and len(text) >= _LONG_CHUNK else None
        self._write(is_stderr, before + lines + ("" if self._unfinished else "\n"))

    def _write(self, is_stderr: bool, text: str) -> None:
        # Looked up each time: notebooks, pytest and redirect_stdout put their own in place.
        stream = sys.stderr if is_stderr else sys.stdout
        if stream is None:
            return
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                encoding = getattr(stream, "encoding", None) or "ascii"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except Exception:
            pass  # closed, full or broken: there is nowhere left to write
