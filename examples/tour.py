"""A tour of weft in a few seconds: every result is checked, every time is measured here and now.

.venv/bin/python examples/tour.py
"""

import asyncio
import os
import statistics
import sys
import time

import numpy as np
import weft

BOLD, DIM, PLAIN = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


def title(text):
    print(f"\n{BOLD}{text}{PLAIN}", flush=True)


def report(what, measured):
    print(f"  {what:<66} {measured:>14}", flush=True)


def duration(seconds):
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} µs"


class Timer:
    """Measures the time of a with block."""

    def __enter__(self):
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.start


@weft.remote
def square(x):
    return x * x


@weft.remote
def add(a, b):
    return a + b


@weft.remote
def nap(seconds):
    time.sleep(seconds)
    return os.getpid()


@weft.remote
def count_leaves(depth):
    # A task may start tasks and wait for them: while it waits, it lends its CPU to others.
    if depth == 0:
        return 1
    return sum(weft.get([count_leaves.remote(depth - 1) for _ in range(2)]))


@weft.remote
def random_block(seed, size):
    return np.random.default_rng(seed).random(size)


@weft.remote
def mean(array):
    return float(array.mean())


@weft.remote
def share_of_sum(array, part, parts):
    return float(array[part::parts].sum())


@weft.remote
def divide(a, b):
    return a / b


@weft.remote
class Counter:
    # An actor: one instance in a worker of its own. Its calls run one at a time, in the order each caller made them.
    def __init__(self, value=0):
        self.value = value

    def add(self, by=1):
        self.value += by
        return self.value


@weft.remote
def count_up(counter, times):
    weft.get([counter.add.remote() for _ in range(times)])


@weft.remote
class Bell:
    # With `async def` methods, calls run at the same time, on one event loop.
    async def ring(self, seconds):
        await asyncio.sleep(seconds)
        return "ding"


def start():
    title("Start")
    with Timer() as timer:
        weft.init()
    report("weft.init()", duration(timer.seconds))
    with Timer() as timer:
        assert weft.get(square.remote(7)) == 49
    report("the first task, its worker included", duration(timer.seconds))


def parallel_tasks():
    title("Parallel tasks")
    cpus = os.cpu_count() or 1
    with Timer() as timer:
        pids = weft.get([nap.remote(0.1) for _ in range(2 * cpus)])
    report(f"{2 * cpus} tasks that sleep 100 ms, on {len(set(pids))} workers", duration(timer.seconds))

    with Timer() as timer:
        references = [square.remote(i) for i in range(10_000)]
        results = weft.get(references)
    assert results == [i * i for i in range(10_000)]
    report("10,000 tasks submitted, then all results fetched", f"{10_000 / timer.seconds:,.0f} / s")

    times = []
    for i in range(300):
        with Timer() as timer:
            assert weft.get(square.remote(i)) == i * i
        times.append(timer.seconds)
    report("one task there and back, median of 300", duration(statistics.median(times)))


def dependencies():
    title("Dependencies: a reference given as an argument becomes its value")
    left, right = square.remote(3), square.remote(4)
    assert weft.get(add.remote(left, right)) == 25
    report("add.remote(square.remote(3), square.remote(4))", "25")

    with Timer() as timer:
        total = weft.put(0)
        for _ in range(1_000):
            total = add.remote(total, 1)
        assert weft.get(total) == 1_000
    report("a chain of 1,000 tasks, each waiting for the one before", duration(timer.seconds))


def nested_tasks():
    title("Nested tasks")
    with Timer() as timer:
        assert weft.get(count_leaves.remote(4)) == 16
    report("a tree of 31 tasks, each waiting for the two it started", duration(timer.seconds))


def actors():
    title("Actors: classes with a process and a state of their own")
    with Timer() as timer:
        counter = Counter.remote(10)
        assert weft.get(counter.add.remote()) == 11
    report("an actor made, and its first call", duration(timer.seconds))

    with Timer() as timer:
        results = weft.get([counter.add.remote() for _ in range(10_000)])
    assert results == list(range(12, 10_012))
    report("10,000 calls, in order, then all results fetched", f"{10_000 / timer.seconds:,.0f} / s")

    times = []
    for _ in range(300):
        with Timer() as timer:
            weft.get(counter.add.remote(0))
        times.append(timer.seconds)
    report("one call there and back, median of 300", duration(statistics.median(times)))

    with Timer() as timer:
        weft.get([count_up.remote(counter, 100) for _ in range(4)])
    assert weft.get(counter.add.remote(0)) == 10_411
    report("four tasks that count up by the same handle", duration(timer.seconds))

    bell = Bell.remote()
    weft.get(bell.ring.remote(0))
    with Timer() as timer:
        assert set(weft.get([bell.ring.remote(0.1) for _ in range(1_000)])) == {"ding"}
    report("1,000 calls of 100 ms each, in one asyncio actor", duration(timer.seconds))


def tree_reduce():
    title("Tree reduce")
    blocks, size = 32, 100_000
    with Timer() as timer:
        weft.get([random_block.remote(seed, 1) for seed in range(4 * (os.cpu_count() or 1))])
    report("the first tasks with arrays: each worker imports NumPy, once", duration(timer.seconds))
    with Timer() as timer:
        layer = [random_block.remote(seed, size) for seed in range(blocks)]
        while len(layer) > 1:
            layer = [add.remote(a, b) for a, b in zip(layer[::2], layer[1::2])]
        average = weft.get(mean.remote(layer[0])) / blocks
    assert abs(average - 0.5) < 0.01
    report(f"{blocks} random arrays of {size:,} numbers, added in pairs: mean {average:.4f}", duration(timer.seconds))


def zero_copy_arrays():
    title("Zero-copy arrays")
    array = np.arange(12_500_000, dtype=np.float64)
    gigabytes = array.nbytes / 1e9
    with Timer() as timer:
        reference = weft.put(array)
    report(f"put of {gigabytes * 1000:.0f} MB into fresh shared memory", f"{gigabytes / timer.seconds:.1f} GB/s")
    with Timer() as timer:
        view = weft.get(reference)
    assert not view.flags.writeable
    report("get: a read-only view of the same memory", duration(timer.seconds))
    with Timer() as timer:
        parts = weft.get([share_of_sum.remote(reference, part, 4) for part in range(4)])
    assert np.isclose(sum(parts), array.sum())
    report("four tasks add up a quarter each, without a copy", duration(timer.seconds))

    # Memory that was written before is warm, and the next put of this size gets it.
    del reference, view
    with Timer() as timer:
        reference = weft.put(array)
    report("put of the same array again", f"{gigabytes / timer.seconds:.1f} GB/s")

    in_place = weft.empty(array.shape, array.dtype)
    in_place[:] = array
    with Timer() as timer:
        reference = weft.put(in_place)
    report("put of an array that was built in place by weft.empty", duration(timer.seconds))
    assert weft.get(mean.remote(reference)) == array.mean()


def errors():
    title("Errors come back as themselves")
    try:
        weft.get(divide.remote(1, 0))
    except ZeroDivisionError as error:
        assert isinstance(error, weft.TaskError)
        report("get(divide.remote(1, 0)) raises", "ZeroDivisionError")
    else:
        raise AssertionError("divide.remote(1, 0) gave a result")


def stop():
    title("Stop")
    with Timer() as timer:
        weft.shutdown()
    report("weft.shutdown(): nothing is left behind", duration(timer.seconds))


def main():
    print(f"{BOLD}weft {weft.__version__}{PLAIN}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    with Timer() as timer:
        start()
        parallel_tasks()
        dependencies()
        nested_tasks()
        actors()
        tree_reduce()
        zero_copy_arrays()
        errors()
        stop()
    print(f"\n{DIM}The tour took {duration(timer.seconds)}. Its source is examples/tour.py.{PLAIN}")


if __name__ == "__main__":
    main()
