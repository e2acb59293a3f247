"""References as futures: `ref.future()` for threads, `await ref` for asyncio. Called by C++.

Both ask C++ for a call when the reference is resolved; that call arrives on the thread of weft._events.
"""

from __future__ import annotations

from . import _core, _events

__all__ = ["await_ref", "future_of"]


def future_of(ref):
    """A concurrent.futures.Future of the reference's value.

    Cancelling the future stops nothing but the future: the task goes on.
    """
    from concurrent.futures import Future

    future: Future = Future()

    def resolved(ref):
        if not future.set_running_or_notify_cancel():
            return
        try:
            value = _core.get(ref, None)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    _events.ensure_started()
    _core.call_when_ready(ref, resolved)
    return future


def await_ref(ref):
    """The iterator behind `await ref`, in whichever asyncio loop runs here.

    The events thread only wakes the loop; the value is taken by the coroutine that waits, so that it is never made
    for a waiter that was cancelled.
    """
    if _core.is_ready(ref):
        return _core.get(ref, None)
    import asyncio

    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake():
        if not woken.done():
            woken.set_result(None)

    def resolved(_):
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            pass  # the loop was closed meanwhile, and with it whoever waited

    _events.ensure_started()
    _core.call_when_ready(ref, resolved)
    yield from woken
    return _core.get(ref, None)
