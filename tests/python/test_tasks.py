"""Tasks: arguments, results, references, get and wait."""

from __future__ import annotations

import functools
import gc
import os
import threading
import time
import weakref

import pytest
import weft
from helpers import hold, note, notes, wait_until

pytestmark = pytest.mark.usefixtures("session")


@weft.remote
def echo(*args, **kwargs):
    return args, kwargs


@weft.remote
def identity(x):
    return x


@weft.remote
def add(a, b=10, *, c=100):
    return a + b + c


@weft.remote
def wait_at(path, result):
    hold(path)
    return result


@weft.remote
def pid():
    return os.getpid()


# ---- arguments and results ------------------------------------------------------------------------------------------


def test_one_task():
    assert weft.get(identity.remote(42)) == 42


def test_tasks_run_in_other_processes():
    assert weft.get(pid.remote()) != os.getpid()


def test_arguments_of_every_kind():
    assert weft.get(add.remote(1)) == 111
    assert weft.get(add.remote(1, 2)) == 103
    assert weft.get(add.remote(1, c=3)) == 14
    assert weft.get(add.remote(c=3, b=2, a=1)) == 6
    assert weft.get(echo.remote()) == ((), {})
    assert weft.get(echo.remote(1, "a", x=None)) == ((1, "a"), {"x": None})
    many = list(range(500))
    assert weft.get(echo.remote(*many)) == (tuple(many), {})
    names = {f"name_{i}": i for i in range(200)}
    assert weft.get(echo.remote(**names)) == ((), names)


def test_wrong_arguments_raise_as_in_a_call():
    for ref in (add.remote(), add.remote(1, 2, 3), add.remote(1, d=1)):
        with pytest.raises(TypeError, match="add"):
            weft.get(ref)


def test_many_tasks_keep_their_results_apart():
    assert weft.get([identity.remote(i) for i in range(5000)]) == list(range(5000))


def test_get_of_lists():
    refs = [identity.remote(i) for i in range(3)]
    assert weft.get(refs) == [0, 1, 2]
    assert weft.get(tuple(refs)) == [0, 1, 2]
    assert weft.get([]) == []
    assert weft.get([refs[1], refs[1]]) == [1, 1]
    first, second = weft.get(refs), weft.get(refs)
    assert first is not second


def test_several_returns():
    @weft.remote(num_returns=3)
    def three():
        return 1, "two", [3]

    refs = three.remote()
    assert isinstance(refs, list)
    assert weft.get(refs) == [1, "two", [3]]
    assert weft.get(identity.options(num_returns=2).remote([5, 6])) == [5, 6]
    assert weft.get(identity.options(num_returns=1).remote((5,))) == (5,)  # one return is the value as it is


def test_no_return():
    assert identity.options(num_returns=0).remote(5) is None


@pytest.mark.parametrize("result", [(1, 2, 3), (), 7, None])
def test_wrong_number_of_returns(result):
    refs = identity.options(num_returns=2).remote(result)
    for ref in refs:
        with pytest.raises((ValueError, TypeError), match="2"):
            weft.get(ref)


def test_an_exception_reaches_every_return():
    @weft.remote(num_returns=2)
    def fail():
        raise ValueError("both")

    for ref in fail.remote():
        with pytest.raises(ValueError, match="both"):
            weft.get(ref)


def test_options_per_call():
    assert weft.get(identity.options(num_cpus=2, name="other", max_retries=0).remote(1)) == 1
    assert weft.get(identity.options(num_cpus=0.5).remote(1)) == 1
    assert weft.get(identity.options(num_cpus=0).remote(1)) == 1


def test_unsatisfiable_request_is_an_error():
    with pytest.raises(weft.UnschedulableError):
        weft.get(identity.options(resources={"unobtainium": 1}).remote(1), timeout=20)
    with pytest.raises(weft.UnschedulableError, match="the task 'identity' asks for 10000 CPU"):
        weft.get(identity.options(num_cpus=10_000).remote(1), timeout=20)


def test_partials_lambdas_and_methods():
    assert weft.get(weft.remote(functools.partial(lambda a, b: a - b, 10)).remote(3)) == 7
    assert weft.get(weft.remote(lambda: "ABC").remote()) == "ABC"

    class Thing:
        def __init__(self, n):
            self.n = n

        def plus(self, m):
            return self.n + m

    assert weft.get(weft.remote(Thing(5).plus).remote(2)) == 7


# ---- references -----------------------------------------------------------------------------------------------------


def test_reference_as_argument_is_its_value():
    assert weft.get(identity.remote(identity.remote(5))) == 5
    assert weft.get(add.remote(identity.remote(1), b=identity.remote(2), c=weft.put(3))) == 6


def test_chain():
    ref = weft.put(0)
    for _ in range(300):
        ref = add.remote(ref, 1, c=0)
    assert weft.get(ref) == 300


def test_reference_in_a_container_stays_a_reference():
    @weft.remote
    def look(container):
        inner = container["refs"][0]
        return type(inner).__name__, weft.get(inner)

    assert weft.get(look.remote({"refs": [identity.remote("value")]})) == ("ObjectRef", "value")


def test_reference_in_an_object_closure_and_default():
    class Holder:
        def __init__(self, ref):
            self.ref = ref

    ref = weft.put("kept")

    @weft.remote
    def open_it(holder, default=ref):
        return weft.get(holder.ref), weft.get(default), weft.get(ref)

    assert weft.get(open_it.remote(Holder(ref))) == ("kept", "kept", "kept")


def test_references_can_be_returned():
    @weft.remote
    def make():
        return [weft.put("from a task"), identity.remote("from a nested task")]

    refs = weft.get(make.remote())
    assert weft.get(refs) == ["from a task", "from a nested task"]


def test_references_nested_in_values_nested_in_values():
    ref = weft.put("deep")
    for _ in range(5):
        ref = weft.put([ref])
    gc.collect()
    value = weft.get(ref)
    for _ in range(5):
        value = weft.get(value[0])
    assert value == "deep"


def test_reference_outlives_the_first_holder():
    outer = weft.put({"inner": weft.put("still here")})
    gc.collect()
    inner = weft.get(outer)["inner"]
    del outer
    gc.collect()
    assert weft.get(inner) == "still here"


def test_dropping_a_reference_does_not_cancel(tmp_path):
    path = tmp_path / "ran"

    @weft.remote
    def leave_trace():
        path.write_text("yes")

    leave_trace.remote()
    gc.collect()
    wait_until(path.exists)


def test_reference_object():
    ref = weft.put(1)
    assert len(ref.binary()) == 16
    assert ref.hex() == ref.binary().hex()
    assert repr(ref) == f"ObjectRef({ref.hex()})"
    assert ref == ref and hash(ref) == hash(ref)  # noqa: PLR0124
    assert ref != weft.put(1)
    assert ref != 1
    assert len({ref, ref}) == 1
    assert weakref.ref(ref)() is ref
    assert weft.ObjectRef[int] is not None
    with pytest.raises(TypeError):
        weft.ObjectRef()


def test_reference_refuses_plain_pickle():
    import pickle

    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(weft.put(1))


# ---- nesting --------------------------------------------------------------------------------------------------------


@weft.remote
def fib(n):
    if n < 2:
        return n
    return sum(weft.get([fib.remote(n - 1), fib.remote(n - 2)]))


def test_recursion_does_not_deadlock():
    assert weft.get(fib.remote(8), timeout=60) == 21


def test_deep_nesting_beyond_the_cpus():
    @weft.remote
    def down(n):
        return 0 if n == 0 else 1 + weft.get(down.remote(n - 1))

    assert weft.get(down.remote(12), timeout=60) == 12


def test_tree_reduce():
    refs = [identity.remote(i) for i in range(64)]
    while len(refs) > 1:
        refs = [add.remote(a, b, c=0) for a, b in zip(refs[::2], refs[1::2])]
    assert weft.get(refs[0]) == sum(range(64))


def test_put_get_and_wait_in_tasks():
    @weft.remote
    def inside():
        refs = [identity.remote(i) for i in range(4)]
        ready, rest = weft.wait(refs, num_returns=4, timeout=30)
        return sorted(weft.get(ready)), rest, weft.get(weft.put("x"))

    assert weft.get(inside.remote()) == ([0, 1, 2, 3], [], "x")


# ---- get ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 5, "ref", {"a": 1}, object()])
def test_get_refuses_what_is_no_reference(wrong):
    with pytest.raises(TypeError, match="ObjectRef"):
        weft.get(wrong)
    with pytest.raises(TypeError, match="ObjectRef"):
        weft.get([weft.put(1), wrong])


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", [1]])
def test_get_refuses_wrong_timeouts(wrong):
    with pytest.raises((TypeError, ValueError), match="timeout"):
        weft.get(weft.put(1), timeout=wrong)


def test_get_timeout(gate):
    ref = wait_at.remote(gate.path, "late")
    for timeout in (0, 0.05):
        started = time.monotonic()
        with pytest.raises(weft.GetTimeoutError) as caught:
            weft.get(ref, timeout=timeout)
        assert time.monotonic() - started < 2
        assert isinstance(caught.value, TimeoutError)
    with pytest.raises(weft.GetTimeoutError):
        weft.get([weft.put(1), ref], timeout=0.05)
    gate.open()
    assert weft.get(ref, timeout=30) == "late"


def test_get_from_many_threads():
    failures = []

    def work(number):
        try:
            for i in range(100):
                value = (number, i)
                if weft.get(identity.remote(value)) != value:
                    failures.append(value)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_progress_without_help():
    """Results arrive while the driver computes and makes no weft call."""
    refs = [identity.remote(i) for i in range(100)]
    chained = add.remote(refs[0], refs[1], c=0)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass
    ready, rest = weft.wait([*refs, chained], num_returns=101, timeout=0)
    assert rest == []


# ---- wait -----------------------------------------------------------------------------------------------------------


def test_wait_splits_and_keeps_order(gate):
    slow = [wait_at.remote(gate.path, i) for i in range(2)]
    quick = [identity.remote(i) for i in range(3)]
    weft.get(quick)
    mixed = [quick[2], slow[0], quick[0], slow[1], quick[1]]
    ready, rest = weft.wait(mixed, num_returns=3)
    assert ready == [quick[2], quick[0], quick[1]]
    assert rest == slow
    ready, rest = weft.wait(mixed, num_returns=2)
    assert ready == [quick[2], quick[0]]  # never more than asked for
    assert rest == [slow[0], slow[1], quick[1]]


def test_wait_timeout(gate):
    refs = [wait_at.remote(gate.path, i) for i in range(2)]
    assert weft.wait(refs, timeout=0) == ([], refs)
    assert weft.wait(refs, num_returns=2, timeout=0.05) == ([], refs)
    gate.open()
    assert weft.wait(refs, num_returns=2, timeout=30) == (refs, [])


def test_wait_counts_failures_as_ready():
    @weft.remote
    def fail():
        raise ValueError

    ref = fail.remote()
    assert weft.wait([ref], timeout=30) == ([ref], [])


def test_wait_loop_ends_with_everything():
    left = [identity.remote(i) for i in range(1000)]
    seen = []
    while left:
        ready, left = weft.wait(left, timeout=30)
        assert len(ready) == 1
        seen += weft.get(ready)
    assert sorted(seen) == list(range(1000))


def test_wait_refuses_wrong_arguments():
    ref, other = weft.put(1), weft.put(2)
    with pytest.raises(ValueError, match="duplicate|twice|more than once"):
        weft.wait([ref, other, ref])
    with pytest.raises(TypeError, match="list"):
        weft.wait(ref)
    with pytest.raises(TypeError, match="ObjectRef"):
        weft.wait([ref, 5])
    for wrong in (0, -1, 3):
        with pytest.raises(ValueError, match="num_returns"):
            weft.wait([ref, other], num_returns=wrong)
    with pytest.raises(TypeError, match="num_returns"):
        weft.wait([ref], num_returns="1")
    with pytest.raises((TypeError, ValueError), match="timeout"):
        weft.wait([ref], timeout=-1)
    with pytest.raises(TypeError):
        weft.wait([ref], nonsense=1)


def test_a_long_task_does_not_hold_up_tiny_ones(gate):
    slow = wait_at.remote(gate.path, "slow")
    assert weft.get([identity.remote(i) for i in range(200)], timeout=30) == list(range(200))
    gate.open()
    assert weft.get(slow, timeout=30) == "slow"


@weft.remote
def one() -> int:
    return 1


def made_slowly(number: int):
    assert weft.get(one.remote()) == 1
    return MadeSlowly(number)


class MadeSlowly:
    """To be unpickled, it waits for a task."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self):
        return made_slowly, (self.number,)


@weft.remote(max_retries=0)
def look_at(path: str, value: MadeSlowly) -> int:
    note(path, str(value.number))
    return value.number


def test_a_task_whose_arguments_wait_for_others_runs_once(no_session, tmp_path):
    """A worker that waits hands back what is queued there; that is not the task that it is about to run."""
    weft.init(num_cpus=1)
    path = str(tmp_path / "ran")
    assert weft.get([look_at.remote(path, MadeSlowly(i)) for i in range(10)], timeout=30) == list(range(10))
    assert sorted(notes(path), key=int) == [str(i) for i in range(10)]
