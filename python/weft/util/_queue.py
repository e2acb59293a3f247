"""A queue that tasks, actors and drivers share: an asyncio actor holds the items."""

from __future__ import annotations

import queue as _standard

__all__ = ["Empty", "Full", "Queue"]

_CALLS = 100_000  # at once: each call that waits for an item or for room is one of them, and they cost no thread


class Empty(_standard.Empty):
    """No item, at once or after the timeout."""


class Full(_standard.Full):
    """No room, at once or after the timeout."""


class Queue:
    """First in, first out, across processes. Pass it on like any value: all copies mean the same queue.

    maxsize: items that fit, 0 for any number. actor_options: of the actor inside, as for `options`; by default it takes
    no CPU. Items are copied into the actor; an ObjectRef stays a reference. The queue ends with the last copy of it.
    The methods are those of queue.Queue, with Empty and Full as subclasses of its exceptions, and `..._async` to await.
    """

    def __init__(self, maxsize: int = 0, actor_options=None):
        import weft

        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"maxsize must be an int, not {type(maxsize).__name__}")
        options = {"num_cpus": 0, "max_concurrency": _CALLS, **(actor_options or {})}
        self.maxsize = maxsize
        self.actor = weft.remote(_Items).options(**options).remote(maxsize)

    def __repr__(self):
        return f"<weft.util.Queue of {self.actor!r}>"

    def __len__(self) -> int:
        return self.qsize()

    def __bool__(self) -> bool:
        return True  # and not whether it has items, which would ask the actor

    def qsize(self) -> int:
        """How many items there are."""
        return _get(self.actor.qsize.remote())

    size = qsize

    def empty(self) -> bool:
        """Whether there is no item."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there is no room."""
        return 0 < self.maxsize <= self.qsize()

    def put(self, item, block: bool = True, timeout=None) -> None:
        """Add an item; wait for room if `block`, at most `timeout` seconds, else raise Full."""
        _check_put(_get(self.actor.put.remote([item], _patience(block, timeout))))

    async def put_async(self, item, block: bool = True, timeout=None) -> None:
        """`put` to be awaited."""
        _check_put(await self.actor.put.remote([item], _patience(block, timeout)))

    def put_nowait(self, item) -> None:
        """`put` without waiting."""
        self.put(item, block=False)

    def put_nowait_batch(self, items) -> None:
        """Add all items, or none and raise Full if there is no room for all."""
        _check_put(_get(self.actor.put_all.remote(list(items))))

    def get(self, block: bool = True, timeout=None):
        """Take the oldest item; wait for one if `block`, at most `timeout` seconds, else raise Empty."""
        return _item(_get(self.actor.get.remote(_patience(block, timeout))))

    async def get_async(self, block: bool = True, timeout=None):
        """`get` to be awaited."""
        return _item(await self.actor.get.remote(_patience(block, timeout)))

    def get_nowait(self):
        """`get` without waiting."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list:
        """Take that many items, or none and raise Empty if there are fewer."""
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise TypeError(f"num_items must be an int, not {type(num_items).__name__}")
        if num_items < 0:
            raise ValueError(f"num_items must not be negative, but is {num_items}")
        items = _get(self.actor.get_all.remote(num_items))
        if items is None:
            raise Empty(f"there are fewer than {num_items} items")
        return items

    def shutdown(self, force: bool = False, grace_period_s: float = 5.0) -> None:
        """End the actor inside. Who waits for it, or calls it after its end, gets ActorDiedError.

        Calls that this process has made before are carried out first, for at most `grace_period_s` seconds; not so if
        `force`.
        """
        import weft

        if self.actor is None:
            return
        if not force:
            try:
                weft.wait([self.actor.qsize.remote()], timeout=grace_period_s)
            except weft.ActorError:
                pass  # it has ended already
        weft.kill(self.actor, no_restart=True)


def _get(ref):
    """The answer. A caller who is interrupted while it waits must not take an item later on."""
    import weft

    try:
        return weft.get(ref)
    except KeyboardInterrupt:
        weft.cancel(ref)
        raise


def _patience(block: bool, timeout):
    """Seconds to wait: 0 for not at all, None without limit."""
    if not block:
        return 0
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError("timeout must not be negative or NaN; None waits without limit")
    return timeout


def _check_put(done: bool) -> None:
    if not done:
        raise Full("the queue has no room")


def _item(answer):
    if answer is None:
        raise Empty("the queue has no item")
    return answer[0]


class _Items:
    """The actor. What it cannot do at once it answers with False or None, so that no exception travels for it.

    Items come and go in lists of one, by which references stay references. Waiters are served in the order in which
    they came.
    """

    def __init__(self, maxsize):
        from collections import deque

        self._most = maxsize
        self._items = deque()
        self._getters = deque()  # futures that wait for an item
        self._putters = deque()  # futures that wait for room

    async def qsize(self):
        return len(self._items)

    async def put(self, boxed, seconds):
        if not await self._wait(self._putters, self._has_room, self._wake_putter, seconds):
            return False
        self._items.append(boxed[0])
        self._wake_getter()
        return True

    async def put_all(self, items):
        if self._putters or 0 < self._most < len(self._items) + len(items):
            return False
        self._items.extend(items)
        for _ in items:
            self._wake_getter()
        return True

    async def get(self, seconds):
        if not await self._wait(self._getters, self._has_item, self._wake_getter, seconds):
            return None
        boxed = [self._items.popleft()]
        self._wake_putter()
        return boxed

    async def get_all(self, count):
        if self._getters or count > len(self._items):
            return None if count else []
        items = [self._items.popleft() for _ in range(count)]
        for _ in items:
            self._wake_putter()
        return items

    def _has_room(self):
        return self._most <= 0 or len(self._items) < self._most

    def _has_item(self):
        return bool(self._items)

    def _wake_getter(self):
        if self._has_item():
            _wake(self._getters)

    def _wake_putter(self):
        if self._has_room():
            _wake(self._putters)

    async def _wait(self, waiters, possible, wake, seconds):
        """Whether it is possible, perhaps after waiting behind others."""
        if possible() and not waiters:
            return True
        if seconds == 0:
            return False
        import asyncio

        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        first = False
        while True:
            woken = asyncio.get_running_loop().create_future()
            waiters.appendleft(woken) if first else waiters.append(woken)
            try:
                if deadline is None:
                    await woken
                else:
                    await asyncio.wait_for(woken, max(0, deadline - asyncio.get_running_loop().time()))
            except BaseException as error:
                # Out of time, or cancelled. If it had been chosen already, the next one is chosen in its place.
                if woken in waiters:
                    waiters.remove(woken)
                else:
                    wake()
                if isinstance(error, asyncio.TimeoutError):
                    return False
                raise
            if possible():
                return True
            first = True  # somebody who did not wait was faster: wait again, before the others


def _wake(waiters):
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return
