"""A fixed set of actors that share a stream of calls."""

from __future__ import annotations

from collections import deque
from time import monotonic

from weft import _core
from weft.exceptions import GetTimeoutError

__all__ = ["ActorPool"]


class ActorPool:
    """Hands calls to whichever of its actors is free.

    A call is `fn(actor, value)`, which must return one ObjectRef: `lambda actor, value: actor.work.remote(value)`. Each
    actor has one call at a time; further calls wait here. An actor is free again as soon as its call has ended, also if
    the call failed. Results are taken in the order of submission (get_next) or as they are ready (get_next_unordered).
    For one thread at a time.
    """

    def __init__(self, actors):
        self._idle = list(actors)
        self._waiting: deque = deque()  # (number, fn, value)
        self._busy: dict = {}  # reference -> (number, actor)
        self._done: dict = {}  # number -> reference, in the order in which they were ready
        self._submitted = 0
        self._next = 0  # the number that get_next returns
        self._taken_out_of_order: set = set()  # numbers from _next on that get_next_unordered has returned
        self._completions = _core.Completions()

    def map(self, fn, values):
        """Call `fn(actor, value)` for each value; an iterator over the results in the order of the values.

        Results of earlier submissions that nobody has taken are dropped.
        """
        self._submit_all(fn, values)
        return self._iterate(self.get_next)

    def map_unordered(self, fn, values):
        """Like map, but the results come as they are ready."""
        self._submit_all(fn, values)
        return self._iterate(self.get_next_unordered)

    def submit(self, fn, value) -> None:
        """Call `fn(actor, value)` as soon as an actor is free."""
        self._waiting.append((self._submitted, fn, value))
        self._submitted += 1
        self._collect(0)
        self._start()

    def get_next(self, timeout=None, ignore_if_timedout=False):
        """The next result in the order of submission.

        Raises StopIteration if there is none, and what the call raised if it failed. If it is not ready after `timeout`
        seconds, GetTimeoutError (a TimeoutError), and the result can be asked for again; with ignore_if_timedout it is
        skipped for good.
        """
        deadline = _deadline(timeout)
        while self._next in self._taken_out_of_order:
            self._taken_out_of_order.remove(self._next)
            self._next += 1
        if self._next >= self._submitted:
            raise StopIteration("the pool has no more results")
        number = self._next
        if not self._wait(lambda: number in self._done, deadline):
            if ignore_if_timedout:
                self._skip(number)
            raise _timed_out(timeout)
        self._next += 1
        return _core.get(self._done.pop(number))

    def get_next_unordered(self, timeout=None, ignore_if_timedout=False):
        """A result that is ready, the earliest first.

        Errors as in get_next. With ignore_if_timedout nothing is skipped here: none of the calls is the next one.
        """
        deadline = _deadline(timeout)
        if not self.has_next():
            raise StopIteration("the pool has no more results")
        if not self._wait(lambda: bool(self._done), deadline):
            raise _timed_out(timeout)
        number = next(iter(self._done))
        self._taken_out_of_order.add(number)
        return _core.get(self._done.pop(number))

    def has_next(self) -> bool:
        """Whether there are results to come or to be taken."""
        return bool(self._done or self._busy or self._waiting)

    def has_free(self) -> bool:
        """Whether an actor is free, and no call waits for one."""
        self._collect(0)
        return bool(self._idle) and not self._waiting

    def pop_idle(self):
        """Take a free actor out of the pool; None if there is none."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor) -> None:
        """Add an actor to the pool."""
        if any(actor is known or actor == known for known in [*self._idle, *(a for _, a in self._busy.values())]):
            raise ValueError("the actor belongs to this pool already")
        self._idle.append(actor)
        self._start()

    # ---- the machinery ----

    def _submit_all(self, fn, values) -> None:
        self._waiting.clear()
        self._forget()
        for value in values:
            self.submit(fn, value)

    def _forget(self) -> None:
        """Nobody wants the results of calls made so far; actors that are busy come back when they are done."""
        self._done.clear()
        self._taken_out_of_order.clear()
        self._next = self._submitted
        self._busy = {ref: (None, actor) for ref, (_, actor) in self._busy.items()}

    def _skip(self, number: int) -> None:
        self._waiting = deque(call for call in self._waiting if call[0] != number)
        for ref, (running, actor) in self._busy.items():
            if running == number:
                self._busy[ref] = (None, actor)
        self._next += 1

    def _iterate(self, take):
        while self.has_next() and self._next < self._submitted:
            try:
                yield take()
            except StopIteration:
                return

    def _start(self) -> None:
        while self._idle and self._waiting:
            number, fn, value = self._waiting.popleft()
            actor = self._idle.pop()
            try:
                ref = fn(actor, value)
                if not isinstance(ref, _core.ObjectRef):
                    raise TypeError(
                        "the function given to an ActorPool must return one ObjectRef, as in "
                        f"lambda actor, value: actor.work.remote(value); it returned a {type(ref).__name__}"
                    )
            except BaseException:
                self._idle.append(actor)
                self._taken_out_of_order.add(number)  # there will be no result
                raise
            self._busy[ref] = (number, actor)
            self._completions.add(ref)

    def _collect(self, timeout) -> bool:
        """Take back actors whose calls have ended, and give them the next; False if none has."""
        ended = self._completions.take(timeout)
        for ref in ended:
            number, actor = self._busy.pop(ref)
            self._idle.append(actor)
            if number is not None:
                self._done[number] = ref
        if ended:
            self._start()
        return bool(ended)

    def _wait(self, condition, deadline) -> bool:
        self._collect(0)
        while not condition():
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not self._busy:
                raise RuntimeError("the pool has calls that wait, but no actor: push() one")
            if not self._collect(left) and left == 0:
                return condition()
        return True


def _deadline(timeout):
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError("timeout must not be negative or NaN; None waits without limit")
    return monotonic() + timeout


def _timed_out(timeout) -> GetTimeoutError:
    return GetTimeoutError(f"no result of the pool was ready after {timeout:g} s; its calls go on")
