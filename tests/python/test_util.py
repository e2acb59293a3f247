"""weft.util: pools of actors, and queues that processes share."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading

import pytest
import weft
from helpers import hold, wait_until
from weft.util import ActorPool, Empty, Full, Queue

pytestmark = pytest.mark.usefixtures("session")


@weft.remote(num_cpus=0)
class Doubler:
    def double(self, x):
        return 2 * x

    def fail(self, x):
        raise KeyError(x)

    def hold(self, path, x):
        hold(path)
        return x

    def two(self, x):
        return x, x


def double(actor, value):
    return actor.double.remote(value)


@pytest.fixture
def pool(session):
    return ActorPool([Doubler.remote() for _ in range(2)])


# ---- ActorPool ------------------------------------------------------------------------------------------------------


def test_map_in_order(pool):
    assert list(pool.map(double, range(50))) == [2 * i for i in range(50)]
    assert list(pool.map(double, [])) == []
    assert not pool.has_next() and pool.has_free()


def test_map_unordered(pool):
    assert sorted(pool.map_unordered(double, range(50))) == [2 * i for i in range(50)]


def test_a_slow_call_holds_up_nobody(pool, gate):
    def call(actor, value):
        return actor.hold.remote(gate.path, value) if value == 0 else actor.double.remote(value)

    results = pool.map_unordered(call, range(10))
    assert sorted(next(results) for _ in range(9)) == [2 * i for i in range(1, 10)]
    gate.open()
    assert list(results) == [0]


def test_an_actor_is_free_when_its_call_has_ended_and_not_only_when_its_result_was_taken(pool, gate):
    """With one actor busy, the other one runs everything behind it, although results are taken in order."""

    def call(actor, value):
        return actor.hold.remote(gate.path, value) if value == 0 else actor.double.remote(value)

    for value in range(10):
        pool.submit(call, value)
    with pytest.raises(weft.GetTimeoutError):
        pool.get_next(timeout=0.05)
    wait_until(lambda: pool.has_free(), what="the second actor has run the other nine")
    gate.open()
    assert [pool.get_next(timeout=60) for _ in range(10)] == [0, *(2 * i for i in range(1, 10))]


def test_submit_and_get_next(pool):
    assert pool.has_free()
    for value in range(5):
        pool.submit(double, value)
    assert pool.has_next()
    assert [pool.get_next() for _ in range(5)] == [0, 2, 4, 6, 8]
    assert not pool.has_next()
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(StopIteration):
        pool.get_next_unordered()


def test_ordered_and_unordered_together(pool):
    for value in range(6):
        pool.submit(double, value)
    first = pool.get_next_unordered()
    rest = [pool.get_next() for _ in range(5)]
    assert sorted([first, *rest]) == [0, 2, 4, 6, 8, 10] and rest == sorted(rest)
    assert not pool.has_next()


def test_timeouts_of_a_pool(pool, gate):
    for value in (1, 2, 3):
        pool.submit(lambda actor, value: actor.hold.remote(gate.path, value), value)
    assert not pool.has_free() and pool.pop_idle() is None
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0.05)
    with pytest.raises(TimeoutError):
        pool.get_next_unordered(timeout=0)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0, ignore_if_timedout=True)  # 1 is skipped
    gate.open()
    assert [pool.get_next(timeout=60), pool.get_next(timeout=60)] == [2, 3]
    with pytest.raises(ValueError, match="timeout"):
        pool.get_next(timeout=-1)


def test_a_call_that_fails(pool):
    pool.submit(lambda actor, value: actor.fail.remote(value), "key")
    pool.submit(double, 1)
    with pytest.raises(KeyError):
        pool.get_next()
    assert pool.get_next() == 2
    wait_until(pool.has_free)


def test_map_drops_what_was_submitted_before(pool, gate):
    pool.submit(lambda actor, value: actor.hold.remote(gate.path, value), "old")
    results = pool.map(double, range(5))
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    gate.open()
    assert list(results) == [6, 8]
    wait_until(pool.has_free)


def test_push_and_pop_idle():
    actors = [Doubler.remote() for _ in range(2)]
    pool = ActorPool(actors)
    taken = pool.pop_idle()
    assert taken in actors
    other = pool.pop_idle()
    assert {taken, other} == set(actors) and pool.pop_idle() is None and not pool.has_free()
    pool.submit(double, 4)  # waits
    with pytest.raises(RuntimeError, match="no actor"):
        pool.get_next(timeout=1)
    pool.push(taken)
    with pytest.raises(ValueError, match="already"):
        pool.push(taken)
    assert pool.get_next() == 8


def test_a_function_that_returns_no_reference(pool):
    with pytest.raises(TypeError, match="one ObjectRef"):
        pool.submit(lambda actor, value: value, 1)
    assert pool.has_free() and not pool.has_next()
    pool.submit(double, 3)
    assert pool.get_next() == 6


# ---- Queue ----------------------------------------------------------------------------------------------------------


def test_first_in_first_out():
    items = Queue()
    assert items.empty() and not items.full() and items.qsize() == len(items) == items.size() == 0
    for i in range(100):
        items.put(i)
    assert items.qsize() == 100 and not items.empty()
    assert [items.get() for _ in range(100)] == list(range(100))


def test_empty_and_full():
    items = Queue(maxsize=2)
    for call in (items.get_nowait, lambda: items.get(block=False), lambda: items.get(timeout=0.05)):
        with pytest.raises(Empty) as raised:
            call()
        assert isinstance(raised.value, queue.Empty)
    items.put_nowait(1)
    items.put_nowait(None)
    assert items.full()
    for call in (lambda: items.put_nowait(3), lambda: items.put(3, block=False), lambda: items.put(3, timeout=0.05)):
        with pytest.raises(Full) as raised:
            call()
        assert isinstance(raised.value, queue.Full)
    assert [items.get(), items.get()] == [1, None]
    assert items.empty()


@pytest.mark.parametrize("timeout, error", [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_wrong_timeouts_of_a_queue(timeout, error):
    items = Queue()
    for call in (items.get, lambda **given: items.put(1, **given)):
        with pytest.raises(error, match="timeout"):
            call(timeout=timeout)


def test_waiting_for_an_item_and_for_room():
    items = Queue(maxsize=1)
    got = []
    getter = threading.Thread(target=lambda: got.append(items.get(timeout=60)))
    getter.start()
    items.put("late")
    getter.join(60)
    assert got == ["late"]
    items.put(1)
    putter = threading.Thread(target=lambda: items.put(2, timeout=60))
    putter.start()
    assert items.get() == 1
    putter.join(60)
    assert items.get(timeout=60) == 2


def test_batches():
    items = Queue(maxsize=5)
    items.put_nowait_batch(range(4))
    with pytest.raises(Full):
        items.put_nowait_batch([1, 2])
    assert items.qsize() == 4  # all or nothing
    items.put_nowait_batch([4])
    with pytest.raises(Empty):
        items.get_nowait_batch(6)
    assert items.get_nowait_batch(0) == []
    assert items.get_nowait_batch(5) == [0, 1, 2, 3, 4]
    for wrong, error in ((-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="num_items"):
            items.get_nowait_batch(wrong)


def test_producers_and_consumers_in_tasks():
    items = Queue(maxsize=10)

    @weft.remote(num_cpus=0)
    def produce(items, first, count):
        for i in range(first, first + count):
            items.put(i)

    @weft.remote(num_cpus=0)
    def consume(items, count):
        return [items.get(timeout=60) for _ in range(count)]

    producers = [produce.remote(items, 100 * i, 100) for i in range(3)]
    consumers = [consume.remote(items, 100) for _ in range(3)]
    received = weft.get(consumers, timeout=90)
    weft.get(producers)
    assert sorted(itertools.chain(*received)) == list(range(300))
    for part in received:  # of each producer in its order
        for i in range(3):
            mine = [x for x in part if x // 100 == i]
            assert mine == sorted(mine)
    assert items.empty()


def test_async_methods():
    items = Queue(maxsize=1)

    async def exchange():
        getter = asyncio.ensure_future(items.get_async(timeout=60))
        await items.put_async("a")
        assert await getter == "a"
        with pytest.raises(Empty):
            await items.get_async(block=False)
        await items.put_async(1)
        with pytest.raises(Full):
            await items.put_async(2, timeout=0.05)
        return await items.get_async()

    assert asyncio.run(exchange()) == 1


def test_a_reference_stays_a_reference():
    items = Queue()
    ref = weft.put([1, 2, 3])
    items.put(ref)
    again = items.get()
    assert again == ref and weft.get(again) == [1, 2, 3]
    items.put({"inside": [ref]})
    assert items.get() == {"inside": [ref]}


def test_a_timed_out_get_takes_nothing():
    items = Queue()
    for _ in range(10):
        with pytest.raises(Empty):
            items.get(timeout=0.01)
    items.put(1)
    assert items.get(timeout=60) == 1


def test_shutdown_of_a_queue():
    def ended(call):
        """The actor is killed in the background: a call on its heels may still be answered."""
        try:
            call()
        except weft.ActorDiedError:
            return True
        except Empty:
            pass
        return False

    items = Queue()
    for i in range(3):
        items.put(i)
    items.shutdown()
    wait_until(lambda: ended(items.get_nowait), 30)
    forced = Queue(actor_options={"num_cpus": 0})
    forced.shutdown(force=True)
    wait_until(lambda: ended(lambda: forced.put(1)), 30)
    forced.shutdown()


def test_wrong_arguments_of_a_queue():
    with pytest.raises(TypeError, match="maxsize"):
        Queue(maxsize="3")
    with pytest.raises(TypeError):
        Queue(actor_options={"num_cpu": 1})


def test_queues_that_are_dropped_at_once_disturb_no_other():
    """The actor of a dropped queue may get its worker after its caller has forgotten it."""
    for _ in range(10):
        for _ in range(3):
            Queue()
        items = Queue()
        items.put(1, timeout=30)
        assert items.get(timeout=30) == 1
