"""Results in the order in which they are ready: `as_completed` and `map_unordered`.

C++ keeps the list of what was resolved (`_core.Completions`), so a step costs the same however many references there
are. Both take all that is ready at once and hand it out one by one.
"""

from __future__ import annotations

from time import monotonic

from . import _core
from .exceptions import GetTimeoutError

__all__ = ["as_completed", "map_unordered"]

_IN_FLIGHT = 1000  # calls: enough to keep any machine busy with tasks that take a millisecond


def as_completed(refs, timeout=None):
    """Iterate over references in the order in which they become ready.

    refs: any iterable of ObjectRefs; one that occurs twice comes twice. timeout: seconds for the whole iteration, from
    this call on; when they are over, the iterator raises GetTimeoutError, and the tasks go on. A task that failed is
    ready as well: `get` of its reference raises.
    """
    if isinstance(refs, _core.ObjectRef):
        raise TypeError(
            "as_completed() expects several ObjectRefs, in a list for example, not a single one; get() waits for one"
        )
    deadline = _deadline(timeout)
    completions = _core.Completions()
    completions.add(refs)
    return _in_order(completions, len(completions), timeout, deadline)


def _in_order(completions, total, timeout, deadline):
    while len(completions):
        ready = completions.take(None if deadline is None else max(0.0, deadline - monotonic()))
        if not ready:
            raise GetTimeoutError(
                f"{len(completions)} of {total} references were not ready after {timeout:g} s; "
                "the tasks that make them go on"
            )
        yield from ready


def map_unordered(remote_function, iterable, *, max_in_flight=None):
    """Call a remote function with each item, and iterate over the results in the order in which they become ready.

    remote_function: what `remote` made of a function, or a method of an actor's handle. iterable may be endless: at
    most `max_in_flight` calls (default 1000) are made ahead of the results that were taken. A call that failed raises
    where its result would come; the iterator can be used further.
    """
    if not callable(getattr(remote_function, "remote", None)):
        raise TypeError(
            "map_unordered() expects a remote function, one that weft.remote has made, "
            f"not {type(remote_function).__name__}"
        )
    if max_in_flight is None:
        max_in_flight = _IN_FLIGHT
    elif isinstance(max_in_flight, bool) or not isinstance(max_in_flight, int):
        raise TypeError(f"max_in_flight must be an int or None, not {max_in_flight!r}")
    elif max_in_flight < 1:
        raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
    return _Map(remote_function, iter(iterable), max_in_flight)


class _Map:
    """The iterator of map_unordered. It makes calls only while it is asked for results."""

    def __init__(self, remote_function, items, max_in_flight):
        self._remote = remote_function.remote
        self._items = items
        self._most = max_in_flight
        self._step = max(1, max_in_flight // 4)  # calls are made in groups, which costs less than one by one
        self._completions = _core.Completions()
        self._ready: list = []  # the next one last

    def __iter__(self):
        return self

    def __next__(self):
        self._call()
        if not self._ready:
            self._ready = self._completions.take(None)
            self._ready.reverse()
        if not self._ready:
            raise StopIteration
        return _core.get(self._ready.pop())

    def _call(self) -> None:
        room = self._most - len(self._completions) - len(self._ready)
        if self._items is None or room < self._step:
            return
        made: list = []
        try:
            for item in self._items:
                ref = self._remote(item)
                if not isinstance(ref, _core.ObjectRef):
                    raise TypeError("map_unordered() needs a function with one return value (num_returns=1)")
                made.append(ref)
                if len(made) == room:
                    break
            else:
                self._items = None
        finally:
            self._completions.add(made)


def _deadline(timeout):
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError("timeout must not be negative or NaN; None waits without limit")
    return monotonic() + timeout
