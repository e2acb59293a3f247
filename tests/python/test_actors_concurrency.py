"""Actors that do several things at once: threads, concurrency groups, asyncio; and limits on what may wait."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import time

import pytest
import weft
from helpers import hold, wait_until

pytestmark = pytest.mark.usefixtures("session")


# ---- one at a time --------------------------------------------------------------------------------------------------


@weft.remote
class Busy:
    def __init__(self):
        self.now = self.most = 0
        self.lock = threading.Lock()

    def work(self, seconds=0.02):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(seconds)
        with self.lock:
            self.now -= 1
        return threading.get_ident()

    def greatest(self):
        return self.most

    def main_thread(self):
        return threading.current_thread() is threading.main_thread()

    def wait_for(self, path):
        hold(path)
        return "waited"

    def ping(self):
        return "pong"


def test_one_call_at_a_time():
    busy = Busy.remote()
    threads = weft.get([busy.work.remote() for _ in range(10)])
    assert len(set(threads)) == 1
    assert weft.get(busy.greatest.remote()) == 1
    assert weft.get(busy.main_thread.remote()) is True


# ---- threads --------------------------------------------------------------------------------------------------------


def test_threads_run_together_up_to_the_limit():
    busy = Busy.options(max_concurrency=4).remote()
    weft.get([busy.work.remote(0.05) for _ in range(20)])
    assert 2 <= weft.get(busy.greatest.remote()) <= 4


def test_a_waiting_call_does_not_hold_up_another_thread(gate):
    busy = Busy.options(max_concurrency=2).remote()
    waiting = busy.wait_for.remote(gate.path)
    assert weft.get(busy.ping.remote(), timeout=30) == "pong"
    gate.open()
    assert weft.get(waiting) == "waited"


def test_threads_wait_for_each_other():
    """Two calls that meet at a barrier: both must run at once."""

    @weft.remote(max_concurrency=2)
    class Meeting:
        def __init__(self):
            self.barrier = threading.Barrier(2)

        def meet(self):
            self.barrier.wait(30)
            return True

    meeting = Meeting.remote()
    assert weft.get([meeting.meet.remote(), meeting.meet.remote()], timeout=60) == [True, True]


def test_threads_use_weft():
    @weft.remote(max_concurrency=4)
    class User:
        def use(self, i):
            @weft.remote
            def square(x):
                return x * x

            return weft.get(square.remote(i)) + weft.get(weft.put(1))

    user = User.remote()
    assert weft.get([user.use.remote(i) for i in range(12)], timeout=60) == [i * i + 1 for i in range(12)]


def test_an_error_in_a_thread():
    @weft.remote(max_concurrency=3)
    class Fails:
        def fail(self):
            raise KeyError("thread")

    fails = Fails.remote()
    for ref in [fails.fail.remote() for _ in range(5)]:
        with pytest.raises(KeyError, match="thread"):
            weft.get(ref, timeout=30)


@weft.remote
class Counted:
    """Knows how many of its calls run at once."""

    def __init__(self):
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.order = []
        self.event = threading.Event()
        self.barrier = threading.Barrier(16)

    def enter(self, i):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.order.append(i)
        if i % 50 == 0:
            time.sleep(0.0005)
        with self.lock:
            self.now -= 1
        return i

    def greatest(self):
        return self.most

    def began(self):
        return self.order

    def note(self, i):
        self.order.append(i)

    def meet(self):
        return self.barrier.wait(30)

    def wait_event(self):
        assert self.event.wait(30)
        return "set"

    def set_event(self):
        self.event.set()

    def ping(self):
        return "pong"

    def compute(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    def thread(self):
        return threading.get_ident()


@pytest.mark.parametrize("limit", [2, 16])
def test_a_long_queue_of_short_calls_stays_within_the_limit(limit):
    actor = Counted.options(max_concurrency=limit).remote()
    assert weft.get([actor.enter.remote(i) for i in range(5000)], timeout=60) == list(range(5000))
    assert 2 <= weft.get(actor.greatest.remote()) <= limit
    assert sorted(weft.get(actor.began.remote())) == list(range(5000))


def test_short_calls_run_back_to_back_on_one_thread():
    """They do not wake a thread each."""
    actor = Counted.options(max_concurrency=16).remote()
    threads = weft.get([actor.thread.remote() for _ in range(1000)], timeout=60)
    assert sum(one != other for one, other in zip(threads, threads[1:])) < 500


def test_as_many_calls_as_may_run_wait_for_each_other():
    actor = Counted.options(max_concurrency=16).remote()
    for _ in range(20):
        assert sorted(weft.get([actor.meet.remote() for _ in range(16)], timeout=60)) == list(range(16))


def test_blocked_calls_do_not_hold_up_those_behind_them():
    actor = Counted.options(max_concurrency=16).remote()
    for _ in range(3):
        weft.get([actor.ping.remote() for _ in range(100)], timeout=30)  # its calls are known to be short
    waiting = [actor.wait_event.remote() for _ in range(15)]
    # Through the one place that is left, in the order they were called.
    weft.get([actor.note.remote(i) for i in range(1000)], timeout=30)
    assert weft.get(actor.began.remote(), timeout=30) == list(range(1000))
    assert weft.wait(waiting, timeout=0)[0] == []
    weft.get(actor.set_event.remote(), timeout=30)
    assert weft.get(waiting, timeout=30) == ["set"] * 15


def test_a_short_call_is_answered_although_the_next_one_blocks():
    """Replies of short calls may be announced together, but not after a call that blocks."""
    actor = Counted.options(max_concurrency=2).remote()
    for _ in range(3):
        weft.get([actor.ping.remote() for _ in range(100)], timeout=30)
    refs = [actor.ping.remote() for _ in range(5)]
    waiting = actor.wait_event.remote()
    assert weft.get(refs, timeout=20) == ["pong"] * 5
    weft.get(actor.set_event.remote(), timeout=20)
    assert weft.get(waiting, timeout=20) == "set"


def test_a_call_that_waits_for_a_later_one():
    actor = Counted.options(max_concurrency=2).remote()
    waiting = actor.wait_event.remote()
    refs = [actor.ping.remote() for _ in range(200)]
    later = actor.set_event.remote()
    assert weft.get([waiting, later, *refs], timeout=30) == ["set", None] + ["pong"] * 200


def test_short_calls_beside_one_that_computes():
    actor = Counted.options(max_concurrency=2).remote()
    busy = actor.compute.remote(2)
    assert weft.get([actor.ping.remote() for _ in range(10)], timeout=30) == ["pong"] * 10
    assert weft.wait([busy], timeout=0)[0] == []


def test_many_callers_of_a_threaded_actor():
    actor = Counted.options(max_concurrency=8).remote()

    @weft.remote(num_cpus=0)
    def call(actor, first):
        return weft.get([actor.enter.remote(first + i) for i in range(500)], timeout=60)

    results = weft.get([call.remote(actor, 1000 * i) for i in range(4)], timeout=120)
    assert results == [[1000 * k + i for i in range(500)] for k in range(4)]
    assert weft.get(actor.greatest.remote()) <= 8


# ---- concurrency groups ---------------------------------------------------------------------------------------------


@weft.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    def __init__(self):
        self.barrier = threading.Barrier(2)

    @weft.method(concurrency_group="io")
    def meet(self):
        self.barrier.wait(30)
        return threading.current_thread().name

    @weft.method(concurrency_group="io")
    def io_wait(self, path):
        hold(path)

    @weft.method(concurrency_group="compute")
    def compute(self):
        return "computed"

    def plain(self):
        return "plain"

    def plain_wait(self, path):
        hold(path)


def test_groups_do_not_hold_each_other_up(gate):
    grouped = Grouped.remote()
    waiting = [grouped.io_wait.remote(gate.path) for _ in range(3)]
    assert weft.get(grouped.compute.remote(), timeout=30) == "computed"
    assert weft.get(grouped.plain.remote(), timeout=30) == "plain"
    gate.open()
    weft.get(waiting, timeout=30)


def test_a_group_runs_as_many_as_it_may():
    grouped = Grouped.remote()
    weft.get([grouped.meet.remote(), grouped.meet.remote()], timeout=60)


def test_the_group_of_one_call(gate):
    grouped = Grouped.remote()
    grouped.plain_wait.remote(gate.path)
    assert weft.get(grouped.plain.options(concurrency_group="compute").remote(), timeout=30) == "plain"


def test_groups_of_asyncio_actors():
    @weft.remote(concurrency_groups={"one": 1})
    class Async:
        def __init__(self):
            self.now = self.most = 0

        @weft.method(concurrency_group="one")
        async def limited(self):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.01)
            self.now -= 1

        async def greatest(self):
            return self.most

    actor = Async.remote()
    weft.get([actor.limited.remote() for _ in range(10)], timeout=30)
    assert weft.get(actor.greatest.remote(), timeout=30) == 1


@weft.remote(num_cpus=0)
class Caller:
    def call(self, method, actor, count):
        """Calls that wait for a place; returns when they have come."""
        self.refs = [getattr(actor, method).remote() for _ in range(count)]
        return weft.get(actor.ping.remote())

    def get(self):
        return weft.get(self.refs)


@pytest.mark.parametrize("method", ["at_once", "awaits_nothing"])
def test_thousands_of_calls_that_wait_for_one_place(gate, method):
    """Each begins the next one when it ends: not one inside the other."""
    callers, of_each = 12, 4_000

    @weft.remote(concurrency_groups={"one": 1})
    class Async:
        def __init__(self):
            self.count = 0

        @weft.method(concurrency_group="one")
        async def wait(self, path):
            while not os.path.exists(path):
                await asyncio.sleep(0.01)

        @weft.method(concurrency_group="one")
        def at_once(self):
            self.count += 1
            return self.count

        @weft.method(concurrency_group="one")
        async def awaits_nothing(self):
            self.count += 1
            return self.count

        async def ping(self):
            return True

    actor = Async.remote()
    running = actor.wait.remote(gate.path)
    several = [Caller.remote() for _ in range(callers)]
    assert all(weft.get([caller.call.remote(method, actor, of_each) for caller in several], timeout=60))
    gate.open()
    numbers = weft.get([caller.get.remote() for caller in several], timeout=60)
    assert sorted(number for of_one in numbers for number in of_one) == list(range(1, callers * of_each + 1))
    weft.get(running)


def test_nothing_stays_of_a_coroutine_that_awaits_nothing():
    @weft.remote
    class Async:
        async def nothing(self):
            return 1

        async def tasks(self):
            return sum(1 for task in gc.get_objects() if isinstance(task, asyncio.Task))

    actor = Async.remote()
    before = weft.get(actor.tasks.remote(), timeout=30)
    weft.get([actor.nothing.remote() for _ in range(1000)], timeout=30)
    wait_until(lambda: weft.get(actor.tasks.remote()) <= before + 5, 10, "tasks of calls that have ended are kept")


def test_a_coroutine_that_awaits_nothing_is_tried_a_thousand_times():
    @weft.remote
    class Async:
        def __init__(self):
            self.tries = 0

        @weft.method(max_task_retries=-1, retry_exceptions=True)
        async def fail(self, times):
            self.tries += 1
            if self.tries <= times:
                raise ValueError(self.tries)
            return self.tries

    assert weft.get(Async.remote().fail.remote(20_000), timeout=60) == 20_001


@pytest.mark.parametrize("options", [{"max_concurrency": 4}, {"concurrency_groups": {"io": 2}}, {"max_concurrency": 1}])
@pytest.mark.parametrize("how", ["dropped", "exit_actor", "in a call"])
def test_an_actor_with_threads_ends(options, how, gate):
    @weft.remote(num_cpus=0, **options)
    class Threaded:
        def pid(self):
            return os.getpid()

        def leave(self):
            weft.exit_actor()

        def wait(self, path):
            hold(path)

    actors = [Threaded.remote() for _ in range(6)]
    pids = weft.get([actor.pid.remote() for _ in range(8) for actor in actors])[:6]
    if how == "exit_actor":
        for actor in actors:
            with pytest.raises(weft.ActorDiedError, match="exit_actor"):
                weft.get(actor.leave.remote())
    elif how == "in a call":
        waiting = [actor.wait.remote(gate.path) for actor in actors]
        del actors
        gate.open()
        weft.get(waiting)
    else:
        del actors
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 10, "processes of actors have ended")


# ---- asyncio --------------------------------------------------------------------------------------------------------

variable = contextvars.ContextVar("variable", default="unset")


@weft.remote
class Async:
    def __init__(self):
        self.now = self.most = 0
        self.event = None
        self.loop = None

    async def work(self, seconds=0.05):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(seconds)
        self.now -= 1
        return "worked"

    async def greatest(self):
        return self.most

    async def running(self):
        return self.now

    async def wait_event(self):
        self.event = self.event or asyncio.Event()
        self.now += 1
        self.most = max(self.most, self.now)
        await self.event.wait()
        self.now -= 1
        return "released"

    async def set_event(self):
        self.event = self.event or asyncio.Event()
        self.event.set()

    async def task(self):
        task = asyncio.current_task()
        assert task is not None
        before = id(task)
        await asyncio.sleep(0)
        assert id(asyncio.current_task()) == before
        return True

    async def tasks_differ(self):
        return id(asyncio.current_task()), await asyncio.sleep(0.05, id(asyncio.current_task()))

    async def context(self, value):
        seen = variable.get()
        variable.set(value)
        await asyncio.sleep(0.01)
        return seen, variable.get()

    async def same_loop(self):
        loop = asyncio.get_running_loop()
        self.loop = self.loop or loop
        return self.loop is loop

    async def at_once(self):
        return "at once"

    def plain(self):
        asyncio.get_running_loop()
        return "plain"

    async def fail(self):
        await asyncio.sleep(0)
        raise KeyError("async")

    async def thread_count(self):
        return threading.active_count()

    async def nested(self):
        @weft.remote
        def square(x):
            return x * x

        return await asyncio.gather(*[square.remote(i) for i in range(5)])

    async def time_limit(self):
        try:
            await asyncio.wait_for(asyncio.sleep(60), 0.01)
        except asyncio.TimeoutError:
            return "timed out"

    async def group(self):
        return await asyncio.gather(self.at_once(), self.time_limit())


def test_a_thousand_calls_await_together():
    actor = Async.remote()
    refs = [actor.wait_event.remote() for _ in range(999)]
    wait_until(lambda: weft.get(actor.running.remote(), timeout=30) == 999, 30, "999 calls running together")
    assert weft.get(actor.thread_count.remote()) < 10
    weft.get(actor.set_event.remote())
    assert weft.get(refs, timeout=30) == ["released"] * 999


def test_max_concurrency_limits_asyncio():
    actor = Async.options(max_concurrency=3).remote()
    weft.get([actor.work.remote(0.02) for _ in range(12)], timeout=30)
    assert weft.get(actor.greatest.remote()) == 3


def test_coroutines_are_tasks_of_their_own():
    actor = Async.remote()
    assert weft.get([actor.task.remote() for _ in range(10)], timeout=30) == [True] * 10
    pairs = weft.get([actor.tasks_differ.remote() for _ in range(10)], timeout=30)
    assert all(before == after for before, after in pairs)
    assert len({before for before, _ in pairs}) == 10


def test_context_variables_do_not_leak_between_calls():
    actor = Async.remote()
    assert weft.get([actor.context.remote(i) for i in range(20)], timeout=30) == [("unset", i) for i in range(20)]


def test_plain_methods_of_asyncio_actors_run_in_the_loop():
    actor = Async.remote()
    assert weft.get(actor.plain.remote(), timeout=30) == "plain"
    assert weft.get([actor.same_loop.remote() for _ in range(5)]) == [True] * 5


def test_errors_of_coroutines():
    actor = Async.remote()
    with pytest.raises(KeyError, match="async") as caught:
        weft.get(actor.fail.remote(), timeout=30)
    assert isinstance(caught.value, weft.TaskError)
    assert weft.get(actor.at_once.remote()) == "at once"


def test_coroutines_use_weft_and_asyncio():
    actor = Async.remote()
    assert weft.get(actor.nested.remote(), timeout=60) == [0, 1, 4, 9, 16]
    assert weft.get(actor.time_limit.remote(), timeout=30) == "timed out"
    assert weft.get(actor.group.remote(), timeout=30) == ["at once", "timed out"]


def test_asyncio_actors_call_each_other():
    @weft.remote
    class Chain:
        def __init__(self, next=None):
            self.next = next

        async def depth(self):
            return 1 if self.next is None else 1 + await self.next.depth.remote()

    chain = Chain.remote(Chain.remote(Chain.remote()))
    assert weft.get([chain.depth.remote() for _ in range(10)], timeout=60) == [3] * 10


def test_an_asyncio_actor_calls_itself():
    @weft.remote
    class Self:
        async def outer(self):
            return await weft.get_runtime_context().current_actor.inner.remote()

        async def inner(self):
            return "inner"

    assert weft.get(Self.remote().outer.remote(), timeout=30) == "inner"


def test_await_from_several_loops_and_threads():
    actor = Async.remote()
    results: list = []

    def run(count):
        async def use():
            return await asyncio.gather(*[actor.work.remote(0.01) for _ in range(count)])

        results.append(asyncio.run(use()))

    threads = [threading.Thread(target=run, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [["worked"] * 20] * 4


def test_one_reference_awaited_by_several_loops():
    actor = Async.remote()
    ref = actor.work.remote(0.1)
    results: list = []

    def run():
        async def use():
            return await ref

        results.append(asyncio.run(use()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == ["worked"] * 4


def test_async_constructor_state_and_wait():
    actor = Async.remote()
    slow, quick = actor.work.remote(0.5), actor.at_once.remote()
    ready, rest = weft.wait([slow, quick], timeout=30)
    assert ready == [quick]
    assert weft.get(rest) == ["worked"]


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_max_pending_calls(gate):
    actor = Busy.options(max_pending_calls=3).remote()
    weft.get(actor.ping.remote())
    refs = [actor.wait_for.remote(gate.path)]
    with pytest.raises(weft.PendingCallsLimitExceeded, match="max_pending_calls"):
        for _ in range(10):
            refs.append(actor.ping.remote())
    assert 3 <= len(refs) <= 4
    gate.open()
    weft.get(refs, timeout=30)
    assert weft.get(actor.ping.remote(), timeout=30) == "pong"


def test_calls_into_a_circle_do_not_hang_for_ever():
    """Two actors that wait for each other: an error that says so, or a time-out of ours; never a dead session."""

    @weft.remote
    class Circle:
        def connect(self, other):
            self.other = other

        def ask(self, depth):
            return weft.get(self.other.ask.remote(depth - 1), timeout=2) if depth else "end"

    first, second = Circle.remote(), Circle.remote()
    weft.get([first.connect.remote(second), second.connect.remote(first)])
    assert weft.get(first.ask.remote(1), timeout=30) == "end"
    with pytest.raises((weft.GetTimeoutError, weft.DeadlockError)):
        weft.get(first.ask.remote(2), timeout=30)
    assert weft.get(first.ask.remote(0), timeout=30) == "end"
