"""as_completed and map_unordered: the order of completion, in linear time, with whatever goes wrong on the way."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time

import pytest
import weft
from helpers import hold, wait_until
from weft import _core

pytestmark = pytest.mark.usefixtures("session")


@weft.remote
def identity(x):
    return x


@weft.remote
def held(path, x):
    hold(path)
    return x


@weft.remote
def fail(x):
    raise KeyError(x)


@weft.remote
def odd_only(x):
    if x % 2 == 0:
        raise ValueError(x)
    return x


def test_order_of_completion(tmp_path):
    gates = [str(tmp_path / str(i)) for i in range(3)]
    refs = [held.remote(path, i) for i, path in enumerate(gates)]
    completed = weft.as_completed(refs)
    for i in (1, 2, 0):
        open(gates[i], "w").close()
        assert next(completed) is refs[i]
    assert next(completed, None) is None


def test_what_is_ready_comes_in_the_order_given():
    refs = [weft.put(i) for i in range(100)]
    assert list(weft.as_completed(refs)) == refs
    assert list(weft.as_completed(iter(refs))) == refs
    assert list(weft.as_completed([])) == []
    assert list(weft.as_completed([refs[0], refs[1], refs[0]])) == [refs[0], refs[1], refs[0]]


def test_names_in_util():
    import weft.util

    assert weft.util.as_completed is weft.as_completed
    assert weft.util.map_unordered is weft.map_unordered


def test_failed_tasks_complete(tmp_path):
    refs = [fail.remote(1), identity.remote(2)]
    assert set(weft.as_completed(refs)) == set(refs)
    with pytest.raises(KeyError):
        weft.get(refs[0])


def test_a_dead_worker_completes():
    @weft.remote(max_retries=0)
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    refs = [die.remote(), identity.remote(1)]
    assert set(weft.as_completed(refs, timeout=60)) == set(refs)
    with pytest.raises(weft.WorkerCrashedError):
        weft.get(refs[0])


def test_timeout(gate):
    ready, pending = identity.remote(1), held.remote(gate.path, 2)
    weft.get(ready)
    completed = weft.as_completed([pending, ready], timeout=0.2)
    assert next(completed) is ready
    begin = time.monotonic()
    with pytest.raises(weft.GetTimeoutError, match="1 of 2 references were not ready after 0.2 s"):
        next(completed)
    assert time.monotonic() - begin < 10
    with pytest.raises(TimeoutError):
        list(weft.as_completed([pending], timeout=0))
    gate.open()
    assert list(weft.as_completed([pending], timeout=60)) == [pending]


@pytest.mark.parametrize(
    "timeout, error", [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)]
)
def test_wrong_timeouts(timeout, error):
    with pytest.raises(error, match="timeout"):
        weft.as_completed([], timeout=timeout)


def test_wrong_references():
    with pytest.raises(TypeError, match="several"):
        weft.as_completed(weft.put(1))
    with pytest.raises(TypeError, match="item 1 is a int"):
        weft.as_completed([weft.put(1), 5])
    with pytest.raises(TypeError):
        weft.as_completed(5)


def test_an_iterator_that_is_dropped_keeps_nothing(gate):
    before = _core.stats()["live_objects"]
    refs = [held.remote(gate.path, i) for i in range(50)]
    for _ in range(3):
        completed = weft.as_completed([*refs, weft.put(1)])
        next(completed)
        del completed
    gc.collect()
    gate.open()
    assert weft.get(refs) == list(range(50))
    del refs
    wait_until(lambda: _core.stats()["live_objects"] <= before, what="the objects are freed")


def test_several_iterators_over_the_same_references(gate):
    refs = [held.remote(gate.path, i) for i in range(20)]
    results = []
    threads = [threading.Thread(target=lambda: results.append(set(weft.as_completed(refs)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(60)
    assert results == [set(refs)] * 4


def test_inside_a_task():
    @weft.remote
    def outer(count):
        return sum(weft.get(ref) for ref in weft.as_completed([identity.remote(i) for i in range(count)]))

    assert weft.get(outer.remote(200), timeout=60) == sum(range(200))


def test_borrowed_references():
    @weft.remote
    def make(count):
        return [identity.remote(i) for i in range(count)]

    refs = weft.get(make.remote(100))
    assert set(weft.as_completed(refs, timeout=60)) == set(refs)


def test_100_000_references():
    """Linear: each step may not look at all the others. A quadratic one would take hours."""
    count = 100_000
    refs = [identity.remote(i) for i in range(count)]
    seen = list(weft.as_completed(refs, timeout=100))
    assert len(seen) == count and set(seen) == set(refs)
    assert sum(1 for _ in weft.as_completed(refs)) == count


def test_the_end_of_the_session_ends_the_iteration(no_session, tmp_path):
    weft.init(num_cpus=2)
    completed = weft.as_completed([held.remote(str(tmp_path / "never"), 1)])
    timer = threading.Timer(0.3, weft.shutdown)
    timer.start()
    with pytest.raises((weft.WeftError, RuntimeError)):
        next(completed)
    timer.join()


# ---- map_unordered --------------------------------------------------------------------------------------------------


def test_map_unordered():
    assert sorted(weft.map_unordered(identity, range(5000))) == list(range(5000))
    assert list(weft.map_unordered(identity, [])) == []
    assert sorted(weft.map_unordered(identity, (weft.put(i) for i in range(10)), max_in_flight=1)) == list(range(10))


def test_map_unordered_of_an_endless_iterable(tmp_path):
    taken = 0

    def items():
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield i

    results = weft.map_unordered(identity, items(), max_in_flight=10)
    assert len({next(results) for _ in range(100)}) == 100
    assert taken <= 110


def test_map_unordered_goes_on_after_an_error():
    results, values, errors = weft.map_unordered(odd_only, range(100)), [], 0
    while True:
        try:
            values.append(next(results))
        except StopIteration:
            break
        except ValueError:
            errors += 1
    assert sorted(values) == list(range(1, 100, 2)) and errors == 50


def test_map_unordered_does_not_hold_results_back(gate):
    @weft.remote
    def slow_zero(path, x):
        if x == 0:
            hold(path)
        return x

    results = weft.map_unordered(_Partial(slow_zero, gate.path), range(50))
    assert sorted(next(results) for _ in range(49)) == list(range(1, 50))
    gate.open()
    assert list(results) == [0]


class _Partial:
    """Anything with a method `remote` will do."""

    def __init__(self, function, first):
        self._function, self._first = function, first

    def remote(self, x):
        return self._function.remote(self._first, x)


def test_map_unordered_refuses():
    with pytest.raises(TypeError, match="remote function"):
        weft.map_unordered(len, [1])
    with pytest.raises(TypeError):
        weft.map_unordered(identity, 5)
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="max_in_flight"):
            weft.map_unordered(identity, [1], max_in_flight=wrong)
    with pytest.raises(TypeError, match="num_returns"):
        next(weft.map_unordered(identity.options(num_returns=2), [(1, 2)]))
