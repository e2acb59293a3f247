"""References as futures and awaitables."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest
import weft
from helpers import hold

pytestmark = pytest.mark.usefixtures("session")


@weft.remote
def identity(x):
    return x


@weft.remote
def wait_at(path, result):
    hold(path)
    return result


@weft.remote
def fail():
    raise ValueError("in the task")


def test_future():
    future = identity.remote(5).future()
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(30) == 5
    assert weft.put("x").future().result(30) == "x"


def test_future_of_a_failure():
    future = fail.remote().future()
    assert isinstance(future.exception(30), ValueError)
    with pytest.raises(weft.TaskError):
        future.result()


def test_future_callbacks_and_wait(gate):
    called = threading.Event()
    futures = [wait_at.remote(gate.path, i).future() for i in range(2)]
    futures[0].add_done_callback(lambda _: called.set())
    done, pending = concurrent.futures.wait(futures, timeout=0.05)
    assert not done
    gate.open()
    done, pending = concurrent.futures.wait(futures, timeout=30)
    assert not pending
    assert called.wait(30)
    assert sorted(future.result() for future in done) == [0, 1]


def test_cancelled_future_leaves_the_task_alone(gate):
    ref = wait_at.remote(gate.path, "done")
    future = ref.future()
    assert future.cancel()
    gate.open()
    assert weft.get(ref, timeout=30) == "done"
    assert future.cancelled()
    assert ref.future().result(30) == "done"


def test_broken_callback_does_not_stop_others():
    first = identity.remote(1).future()
    first.add_done_callback(lambda _: 1 / 0)
    assert first.result(30) == 1
    assert identity.remote(2).future().result(30) == 2


def test_await(gate):
    async def main():
        assert await weft.put("put") == "put"
        assert await identity.remote(1) == 1
        slow = wait_at.remote(gate.path, "slow")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(slow, 0.05)
        gate.open()
        assert await asyncio.wait_for(slow, 30) == "slow"
        assert await slow == "slow"  # again, now that it is ready
        assert await asyncio.gather(*[identity.remote(i) for i in range(100)]) == list(range(100))
        with pytest.raises(ValueError, match="in the task"):
            await fail.remote()
        tasks = [asyncio.ensure_future(identity.remote(i)) for i in range(3)]
        done, pending = await asyncio.wait(tasks, timeout=30)
        assert not pending
        return "end"

    assert asyncio.run(main()) == "end"


def test_await_does_not_block_the_loop(gate):
    async def main():
        waiting = asyncio.ensure_future(wait_at.remote(gate.path, "x"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.open()
        return await waiting

    assert asyncio.run(main()) == "x"


def test_several_loops_in_threads():
    results = []

    def run():
        async def main():
            return await asyncio.gather(*[identity.remote(i) for i in range(50)])

        results.append(asyncio.run(main()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(50))] * 4


def test_loop_closed_while_waiting(gate):
    async def main():
        asyncio.ensure_future(wait_at.remote(gate.path, "x"))
        await asyncio.sleep(0)

    asyncio.run(main())
    gate.open()
    assert identity.remote(1).future().result(30) == 1


def test_await_in_a_task():
    @weft.remote
    def inside():
        async def main():
            return await asyncio.gather(*[identity.remote(i) for i in range(5)])

        return asyncio.run(main()), identity.remote(7).future().result(30)

    assert weft.get(inside.remote(), timeout=60) == ([0, 1, 2, 3, 4], 7)


def test_await_without_a_loop(gate):
    ref = wait_at.remote(gate.path, 1)
    with pytest.raises(RuntimeError, match="loop"):
        ref.__await__().send(None)
