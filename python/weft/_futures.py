"""References as futures: `ref.future()` for threads, `await ref` for asyncio. Called by C++.

Both ask C++ for a call when the reference is resolved; that call arrives on the thread of weft._events.
"""

from __future__ import annotations

from . import _actor_worker, _core, _events

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

    def wake(why):
        if woken.done():
            return
        if why is None:
            woken.set_result(None)
        else:
            woken.set_exception(_error(why))

    def resolved(_, why=None):
        try:
            loop.call_soon_threadsafe(wake, why)
        except RuntimeError:
            pass  # the loop was closed meanwhile, and with it the waiting coroutine

    _events.ensure_started()
    if loop is _actor_worker.loop():
        yield from _await_in_actor(ref, loop, woken, resolved)
    else:
        _core.call_when_ready(ref, resolved)
        yield from woken
    return _core.get(ref, None)


def _await_in_actor(ref, loop, woken, resolved):
    """Wait for it so that others can see the wait, and a circle is found (docs/decisions/0008)."""
    import asyncio

    task = asyncio.current_task(loop)
    by_its_call = _actor_worker.is_of_call(task)
    number = _core.await_when_ready(ref, resolved, by_its_call)
    if not by_its_call:
        _actor_worker.awaiting.add(task)
    try:
        yield from woken
    except BaseException:
        _core.end_await(number)
        raise
    finally:
        if not by_its_call:
            _actor_worker.awaiting.discard(task)


def _error(why: str) -> Exception:
    from . import exceptions

    name, _, message = why.partition("\n")
    error: Exception = getattr(exceptions, name)(message)
    return error
