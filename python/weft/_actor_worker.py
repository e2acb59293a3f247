"""The actor's own process: its constructor, its threads, its asyncio loop. Called by C++ (python_runner.cc).

An asyncio actor runs its loop on the main thread. The loop's selector also looks into the channels of the callers
(`_core._poll` starts the calls that have come) and sleeps on their doorbell; so a call costs no hop between threads.
Only if the actor waits for files or sockets of its own does a second thread sleep on the doorbell.
"""

from __future__ import annotations

from . import _core
from ._errors import ActorExit

__all__ = [
    "Cancelled",
    "classify",
    "construct",
    "describe_mode",
    "find_method",
    "run_loop",
    "start_task",
    "start_thread",
]

_POLL_LIMIT = 256  # calls that are started before the loop turns again

_loop = None
_eager = False  # whether asyncio tasks can start at once (CPython 3.12)
_variable = None  # ContextVar: the number of the call

# Tasks of the loop that await a reference and are not those of calls, but were made by them (gather, create_task).
awaiting: set = set()


class Cancelled(BaseException):
    """Raised in a task or call that is cancelled. A BaseException, so that no `except Exception` swallows it."""


def construct(blob: bytes, cls: type, args: tuple, kwargs: dict) -> tuple:
    """Make the actor: (instance, settings)."""
    from . import _actor

    settings = _actor.read_worker_blob(blob)
    settings.complete(cls)
    if not settings.is_async:
        return cls(*args, **kwargs), settings
    import asyncio

    _make_loop()
    # As if it ran inside the loop: it may create tasks, locks and events.
    asyncio._set_running_loop(_loop)
    try:
        return cls(*args, **kwargs), settings
    finally:
        asyncio._set_running_loop(None)


def describe_mode(settings) -> tuple:
    """(is_async, calls at once, {group: calls at once})"""
    return settings.is_async, settings.max_concurrency, dict(settings.concurrency_groups)


def find_method(instance, name: str):
    if name == "__weft_ready__":
        return lambda: True
    if name == "__weft_terminate__":
        return _terminate
    return getattr(instance, name)


def _terminate():
    raise ActorExit(0)


def classify(error: BaseException, name: str):
    """None for an exception of the user's; else (does the actor end?, "ExceptionClass\\nmessage")."""
    import os
    import sys

    if isinstance(error, Cancelled):
        return False, f"TaskCancelledError\ntask '{name}' was cancelled while it ran (pid {os.getpid()})"
    if isinstance(error, ActorExit):
        return True, f"ActorDiedError\nthe actor ended itself by exit_actor() in '{name}' (pid {os.getpid()})"
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        return False, f"TaskCancelledError\ntask '{name}' was cancelled while it ran (pid {os.getpid()})"
    return None


# ---- threads --------------------------------------------------------------------------------------------------------


def start_thread() -> None:
    """One more thread for calls."""
    import threading

    threading.Thread(target=_core._serve_calls, name="weft-call", daemon=True).start()


# ---- asyncio --------------------------------------------------------------------------------------------------------


def start_task(coroutine, number: int, done):
    """Run the coroutine as an asyncio task in which the call is the present one; `done` takes how it ended."""
    token = _variable.set(number)
    try:
        if _eager:
            import asyncio

            return asyncio.Task(_run(coroutine, done), loop=_loop, eager_start=True)
        return _loop.create_task(_run(coroutine, done))
    finally:
        _variable.reset(token)


async def _run(coroutine, done) -> None:
    # The reply is written inside the task, and not by a callback of it: that would cost another turn of the loop.
    try:
        result = await coroutine
    except BaseException as error:
        done((None, error))
    else:
        done((result, None))


def loop():
    """The event loop of this asyncio actor; None in any other process."""
    return _loop


def is_of_call(task) -> bool:
    """Whether this asyncio task is the one that a call runs in, and none that was made in it."""
    coroutine = task.get_coro()
    return getattr(coroutine, "cr_code", None) is _run.__code__


def _rests() -> bool:
    """Whether nothing but an object, a new call or a thread can wake the loop, which has no timer and no file."""
    import asyncio

    return all(task in awaiting or is_of_call(task) for task in asyncio.all_tasks(_loop))


def cancel_task(task, number: int) -> None:
    """Cancel the task of a call. One that has not begun never begins, so it cannot say how it ended."""
    task.add_done_callback(lambda ended: _core._call_never_began(number))
    task.cancel()


def _make_loop() -> None:
    global _eager, _loop, _variable
    import asyncio
    import contextvars
    import selectors
    import sys

    _variable = contextvars.ContextVar("weft_call")
    _core._set_call_variable(_variable)
    _eager = sys.version_info >= (3, 12)

    class DoorbellSelector(selectors.DefaultSelector):
        """Looks for calls, too."""

        def __init__(self):
            super().__init__()
            self.waker = None

        def select(self, timeout=None):
            count = _core._poll(_POLL_LIMIT)
            if count < 0:
                _loop.stop()
                return []
            if count > 0 or (timeout is not None and timeout <= 0):
                return super().select(0) if len(self._fd_to_key) > 1 else []
            if len(self._fd_to_key) > 1:
                events = super().select(0)
                if events:
                    return events
                if self.waker is None:
                    self.waker = _Waker(self)
                self.waker.arm()
                try:
                    events = super().select(timeout)
                finally:
                    self.waker.disarm()
                events = [event for event in events if event[0].fileobj is not self.waker.reader]
            else:
                if timeout is None and _core.loop_is_asked():
                    _core._sleep(None, 1 if _rests() else 2)
                else:
                    _core._sleep(timeout)
                events = []
            if _core._poll(_POLL_LIMIT) < 0:
                _loop.stop()
            return events

    class ActorLoop(asyncio.SelectorEventLoop):
        def _write_to_self(self):
            # Called by call_soon_threadsafe on any thread. The pipe is needed only while the loop sleeps on files.
            _core._wake()

    _loop = ActorLoop(DoorbellSelector())
    asyncio.set_event_loop(_loop)


class _Waker:
    """A thread that sleeps on the doorbell while the loop sleeps on files, and wakes it."""

    def __init__(self, selector):
        import os
        import threading

        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.armed = threading.Semaphore(0)
        self.asleep = threading.Semaphore(0)
        self.stop = False
        super(type(selector), selector).register(self.reader, 1, None)
        threading.Thread(target=self._run, name="weft-waker", daemon=True).start()

    def arm(self) -> None:
        self.stop = False
        self.armed.release()

    def disarm(self) -> None:
        import os

        self.stop = True
        _core._wake()
        self.asleep.acquire()
        try:
            while os.read(self.reader, 4096):
                pass
        except BlockingIOError:
            pass

    def _run(self) -> None:
        import os

        while True:
            self.armed.acquire()
            if not self.stop:
                _core._sleep(None)
            os.write(self.writer, b"x")
            self.asleep.release()


def run_loop() -> None:
    """Serve calls until the actor ends."""
    import asyncio

    try:
        _loop.run_forever()
    finally:
        asyncio._set_running_loop(None)
