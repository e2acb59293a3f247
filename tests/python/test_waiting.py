"""Waiting explained: a get that cannot end says so within a second and never falsely; explain; long waits."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time

import pytest
import weft
from helpers import hold, note, notes, run_driver, wait_until

SECONDS = 1.0  # in which a deadlock must be found


def leave(path: str, ref) -> None:
    """Give a reference to a task that was submitted before the reference existed, and that waits for it (`left`)."""
    wait_until(lambda: os.path.exists(path + ".begun"), 30, "the task began")
    with open(path + ".new", "wb") as file:
        file.write(ref.binary())
    os.rename(path + ".new", path)


def left(path: str):
    """In a task: the reference that was left there."""
    from weft import _core

    open(path + ".begun", "w").close()
    hold(path)
    with open(path, "rb") as file:
        data = file.read()
    return _core._restore_reference(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big"))


@weft.remote
def wait_for_left(path):
    return weft.get(left(path))


@weft.remote
def wait_for_first(refs):
    return weft.get(refs[0])


@weft.remote
def same(value):
    return value


def expect_deadlock(ref, *names: str) -> str:
    began = time.monotonic()
    with pytest.raises(weft.DeadlockError) as caught:
        weft.get(ref)
    assert time.monotonic() - began < SECONDS
    text = str(caught.value)
    assert "can never end" in text
    for name in names:
        assert name in text
    return text


# ---- deadlocks ------------------------------------------------------------------------------------------------------


def test_a_task_waits_for_its_own_result(session, tmp_path):
    path = str(tmp_path / "own")
    ref = wait_for_left.remote(path)
    leave(path, ref)
    text = expect_deadlock(ref, "'wait_for_left'", "pid ")
    assert text.count("waits for") >= 1


def test_a_circle_through_an_argument(session, tmp_path):
    path = str(tmp_path / "last")
    first = wait_for_left.remote(path)
    last = same.remote(first)
    leave(path, last)
    expect_deadlock(last, "'wait_for_left'", "'same'", "argument")


def test_three_tasks_in_a_circle(session, tmp_path):
    path = str(tmp_path / "third")
    first = wait_for_left.remote(path)
    second = wait_for_first.remote([first])
    third = wait_for_first.options(name="third").remote([second])
    leave(path, third)
    expect_deadlock(third, "'wait_for_left'", "'third'", "'wait_for_first'")


def test_a_parent_holds_what_its_child_needs(no_session):
    weft.init(num_cpus=2, resources={"press": 1})

    @weft.remote(resources={"press": 1})
    def child():
        return 1

    @weft.remote(resources={"press": 1})
    def parent():
        return weft.get(child.remote())

    text = expect_deadlock(parent.remote(), "'child'", "'parent'", "1 press", "0 of 1 press free", "held by")
    # The session goes on: what the parent held is free again.
    assert weft.get(child.remote(), timeout=10) == 1
    assert "CPU" in text


def test_two_parents_hold_what_their_children_need(no_session, tmp_path):
    begun = str(tmp_path / "begun")
    weft.init(num_cpus=4, resources={"press": 2})

    @weft.remote(resources={"press": 1})
    def child():
        return 1

    @weft.remote(resources={"press": 1})
    def parent(number):
        note(begun)
        wait_until(lambda: len(notes(begun)) == 2, what="both hold one")
        try:
            return weft.get(child.remote())
        except weft.DeadlockError:
            return -1

    began = time.monotonic()
    results = weft.get([parent.remote(i) for i in range(2)], timeout=20)
    assert time.monotonic() - began < 3 * SECONDS
    # One gave up, and with what it held the other could go on; or both saw it before.
    assert set(results) <= {1, -1} and -1 in results


def test_wait_raises_too(session, tmp_path):
    path = str(tmp_path / "own")
    ref = wait_for_left.remote(path)
    leave(path, ref)
    with pytest.raises(weft.DeadlockError):
        while True:
            ready, _ = weft.wait([ref])
            weft.get(ready)


def test_the_circle_fails_and_not_who_waits_for_it(session, tmp_path):
    """A task in the circle catches the error and recovers: the driver, which is not in the circle, gets a value."""
    path = str(tmp_path / "own")

    @weft.remote
    def recovers():
        try:
            return weft.get(left(path))
        except weft.DeadlockError:
            return "recovered"

    ref = recovers.remote()
    leave(path, ref)
    assert weft.get(ref) == "recovered"


def test_resources_that_nobody_has(session):
    @weft.remote(resources={"unobtainium": 1})
    def never():
        pass

    began = time.monotonic()
    with pytest.raises(weft.UnschedulableError, match="unobtainium"):
        weft.get(never.remote())
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize("named", [False, True])
def test_an_actor_that_can_never_be_placed(no_session, named):
    weft.init(num_cpus=2, resources={"press": 1})

    @weft.remote(resources={"press": 2})
    class Printer:
        def one(self):
            return 1

    printer = Printer.options(name="printer" if named else None).remote()
    began = time.monotonic()
    ref = printer.one.remote()
    with pytest.raises(weft.UnschedulableError) as caught:
        weft.get(ref)
    assert time.monotonic() - began < SECONDS
    for part in ("Printer.one", "can never start", "asks for 2 press", "only 1 in all", "did not run"):
        assert part in str(caught.value)
    # Also for later callers, for another process, and as text.
    with pytest.raises(weft.UnschedulableError, match="2 press"):
        weft.get(printer.one.remote())

    @weft.remote
    def calls(handles):
        return weft.get(handles[0].one.remote())

    with pytest.raises(weft.UnschedulableError, match="2 press"):
        weft.get(calls.remote([printer]))
    text = weft.explain(ref)
    assert "failed: UnschedulableError: " in text and "2 press" in text


# ---- no deadlocks ---------------------------------------------------------------------------------------------------


def test_slow_tasks(session, gate):
    @weft.remote
    def slow():
        hold(gate.path)
        return 1

    refs = [slow.remote() for _ in range(6)]  # more than there are CPUs
    total = same.remote(refs[0])
    threading.Timer(1.5, gate.open).start()
    assert weft.get([*refs, total]) == [1] * 7


def test_a_timeout_in_the_circle(session, tmp_path):
    path = str(tmp_path / "own")

    @weft.remote
    def gives_up():
        try:
            return weft.get(left(path), timeout=1.5)
        except weft.GetTimeoutError:
            return "gave up"

    ref = gives_up.remote()
    leave(path, ref)
    assert weft.get(ref) == "gave up"


def test_a_get_with_a_timeout_ends_by_it(session, tmp_path):
    path = str(tmp_path / "own")

    @weft.remote
    def waits_for_ever():
        try:
            weft.get(left(path), timeout=3)
        except weft.GetTimeoutError:
            return "gave up"

    ref = waits_for_ever.remote()
    leave(path, ref)
    with pytest.raises(weft.GetTimeoutError):
        weft.get(ref, timeout=1.2)
    assert weft.get(ref) == "gave up"


def test_resources_that_come_free(no_session, gate):
    weft.init(num_cpus=3, resources={"press": 1})

    @weft.remote(resources={"press": 1})
    def printing():
        hold(gate.path)
        return 1

    @weft.remote(resources={"press": 1})
    def next_one():
        return 2

    @weft.remote
    def parent():
        return weft.get(next_one.remote())

    first = printing.remote()
    second = parent.remote()
    threading.Timer(1.5, gate.open).start()
    assert weft.get([second, first]) == [2, 1]


def test_a_body_that_waits_for_a_thread_of_its_own(session):
    """The thread that runs the task waits for another one, not for an object: that is work."""

    @weft.remote
    def with_thread():
        results = []

        def work():
            time.sleep(1.2)
            results.append(weft.get(same.remote(5)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return results[0]

    assert weft.get(with_thread.remote()) == 5


def test_wait_for_one_of_two(session, tmp_path, gate):
    path = str(tmp_path / "own")
    stuck = wait_for_left.remote(path)

    @weft.remote
    def slow():
        hold(gate.path)
        return 1

    @weft.remote
    def picks(refs):
        ready, _ = weft.wait(refs, num_returns=1)
        return weft.get(ready[0])

    picked = picks.remote([stuck, slow.remote()])
    leave(path, picked)
    # stuck waits for picked, which takes whatever comes first: not stuck, and slow comes.
    threading.Timer(1.2, gate.open).start()
    assert weft.get(picked) == 1
    assert weft.get(stuck) == 1


def test_nested_work_under_load_never_raises(no_session):
    """Random trees of tasks that block in get, on few CPUs, with a scarce resource that blocked tasks do not keep."""
    weft.init(num_cpus=2, resources={"press": 1})

    @weft.remote(num_cpus=0.5)
    def leaf(seed):
        time.sleep(random.Random(seed).choice([0, 0, 0.001, 0.02, 0.3]))
        return 1

    @weft.remote(resources={"press": 1}, num_cpus=0)
    def scarce(seed):
        time.sleep(random.Random(seed).choice([0, 0.01, 0.25]))
        return 1

    @weft.remote
    def node(seed, depth):
        draw = random.Random(seed)
        refs = []
        for _ in range(draw.randint(1, 3)):
            kind = draw.random()
            if depth > 0 and kind < 0.5:
                refs.append(node.remote(draw.random(), depth - 1))
            elif kind < 0.6:
                refs.append(scarce.remote(draw.random()))
            elif kind < 0.8:
                refs.append(same.remote(leaf.remote(draw.random())))
            else:
                refs.append(leaf.remote(draw.random()))
        if draw.random() < 0.3:
            ready, rest = weft.wait(refs, num_returns=1)
            refs = ready + rest
        return sum(weft.get(refs))

    deadline = time.monotonic() + float(os.environ.get("WEFT_STRESS_SECONDS", "5"))
    rounds = 0
    while time.monotonic() < deadline:
        assert all(count >= 1 for count in weft.get([node.remote(rounds * 100 + i, 3) for i in range(6)]))
        rounds += 1
    assert rounds > 0


# ---- actors ---------------------------------------------------------------------------------------------------------


@weft.remote
class Peer:
    """Calls others, and itself, and waits."""

    def __init__(self):
        self.others = []

    def meet(self, *others):
        self.others = list(others)

    def one(self):
        return 1

    def ask(self, *way):
        """The next on the way is asked; the last one says 1."""
        if not way:
            return 1
        return weft.get(self.others[way[0]].ask.remote(*way[1:]))

    def ask_when(self, path, *way):
        open(path + f".begun{os.getpid()}", "w").close()
        hold(path)
        return self.ask(*way)

    def ask_with_timeout(self, seconds, other):
        try:
            return weft.get(other.one.remote(), timeout=seconds)
        except weft.GetTimeoutError:
            return "gave up"


def test_an_actor_waits_for_itself(session):
    peer = Peer.remote()
    weft.get(peer.meet.remote(peer))
    expect_deadlock(peer.ask.remote(0), "Peer.ask", "queued behind")
    assert weft.get(peer.one.remote()) == 1  # it goes on


def test_two_actors_wait_for_each_other(session, gate, tmp_path):
    a, b = Peer.remote(), Peer.remote()
    weft.get([a.meet.remote(b), b.meet.remote(a)])
    # Both are inside a call before either calls the other.
    refs = [a.ask_when.remote(gate.path, 0), b.ask_when.remote(gate.path, 0)]
    wait_until(lambda: len(list(tmp_path.glob("gate.begun*"))) == 2, 30, "both run")
    gate.open()
    expect_deadlock(refs, "Peer.ask", "queued behind")
    assert weft.get([a.one.remote(), b.one.remote()]) == [1, 1]


def test_three_actors_in_a_circle(session):
    peers = [Peer.remote() for _ in range(3)]
    weft.get([peer.meet.remote(*peers) for peer in peers])
    # 0 asks 1, which asks 2, which asks 0.
    text = expect_deadlock(peers[0].ask.remote(1, 2, 0), "queued behind")
    assert text.count("Peer.ask") >= 3


def test_an_actor_and_a_task_wait_for_each_other(session):
    @weft.remote
    def call(handles):
        return weft.get(handles[0].one.remote())

    @weft.remote
    class Caller:
        def one(self):
            return 1

        def run(self, handles):
            return weft.get(call.remote(handles))

    caller = Caller.remote()
    expect_deadlock(caller.run.remote([caller]), "'call'", "Caller.one", "queued behind")


def test_a_constructor_that_calls_its_own_actor(session):
    @weft.remote
    class Impatient:
        def __init__(self, name):
            self.value = weft.get(weft.get_actor(name).one.remote())

        def one(self):
            return 1

    impatient = Impatient.options(name="impatient").remote("impatient")
    began = time.monotonic()
    with pytest.raises(weft.WeftError) as caught:
        weft.get(impatient.one.remote())
    assert time.monotonic() - began < 20
    assert "can never end" in str(caught.value) or "DeadlockError" in repr(caught.value.__cause__)


def test_a_call_behind_one_whose_argument_never_comes(session):
    peer = Peer.remote()
    weft.get(peer.meet.remote(peer))

    @weft.remote
    class Second:
        def take(self, value):
            return value

        def one(self):
            return 1

        def run(self, peers):
            me = peers[0]
            me.take.remote(me.one.remote())  # waits for a call to itself, which is queued behind this one
            return weft.get(me.one.remote())

    second = Second.remote()
    expect_deadlock(second.run.remote([second]), "Second.one")


def test_an_actor_that_needs_what_its_creator_holds(no_session):
    weft.init(num_cpus=2, resources={"press": 1})

    @weft.remote(resources={"press": 1})
    class Printer:
        def one(self):
            return 1

    @weft.remote(resources={"press": 1})
    def parent():
        printer = Printer.remote()
        return weft.get(printer.one.remote())

    expect_deadlock(parent.remote(), "actor Printer", "1 press", "'parent'")


def test_threaded_actors_have_free_slots(session):
    threaded = Peer.options(max_concurrency=2)
    a, b = threaded.remote(), threaded.remote()
    weft.get([a.meet.remote(b), b.meet.remote(a)])
    assert weft.get([a.ask.remote(0), b.ask.remote(0)]) == [1, 1]
    assert weft.get(a.ask.remote(0, 0)) == 1


def test_threaded_actors_without_free_slots(session):
    peer = Peer.options(max_concurrency=2).remote()
    weft.get(peer.meet.remote(peer))
    assert weft.get(peer.ask.remote(0)) == 1  # the second slot takes it
    expect_deadlock(peer.ask.remote(0, 0), "Peer.ask")  # the third call finds none


def test_asyncio_actors_that_await_each_other(session):
    @weft.remote
    class Async:
        async def meet(self, other):
            self.other = other

        async def one(self):
            import asyncio

            await asyncio.sleep(1.2)
            return 1

        async def ask(self):
            return await self.other.one.remote()

    a, b = Async.remote(), Async.remote()
    weft.get([a.meet.remote(b), b.meet.remote(a)])
    assert weft.get([a.ask.remote(), b.ask.remote()]) == [1, 1]


@weft.remote
class Coroutines:
    """Calls others, and itself, and awaits."""

    async def meet(self, *others):
        self.others = list(others)

    async def one(self):
        return 1

    async def ask(self, *way):
        """The next on the way is asked; the last one says 1."""
        if not way:
            return 1
        return await self.others[way[0]].ask.remote(*way[1:])

    async def ask_or_recover(self, *way):
        try:
            return await self.ask(*way)
        except weft.DeadlockError:
            return "recovered"

    async def ask_in(self, how, other):
        import asyncio

        ref = other.ask.remote()
        if how == "wait_for":
            return await asyncio.wait_for(ref, 1.5)
        if how == "timeout":
            async with asyncio.timeout(1.5):
                return await ref
        if how == "later":
            asyncio.get_running_loop().call_later(1.5, asyncio.current_task().cancel)
            return await ref
        if how == "sibling":
            me = asyncio.current_task()

            async def cancels():
                await slow_one.remote(1.5)
                me.cancel()

            self.sibling = asyncio.ensure_future(cancels())
            return await ref
        assert how == "thread"
        me, loop = asyncio.current_task(), asyncio.get_running_loop()

        async def cancels_after_thread():
            await loop.run_in_executor(None, time.sleep, 1.5)
            me.cancel()

        self.sibling = asyncio.ensure_future(cancels_after_thread())
        return await ref

    async def wait_for_signal(self):
        import asyncio

        self.signal = asyncio.Event()
        await self.signal.wait()
        return 1

    async def give_signal(self):
        self.signal.set()

    async def await_left(self, path):
        import asyncio

        open(path + ".begun", "w").close()
        while not os.path.exists(path):
            await asyncio.sleep(0.01)
        return await left(path)


@weft.remote
def slow_one(seconds):
    time.sleep(seconds)
    return 1


def test_a_coroutine_awaits_its_own_result(session, tmp_path):
    path = str(tmp_path / "own")
    actor = Coroutines.remote()
    ref = actor.await_left.remote(path)
    leave(path, ref)
    expect_deadlock(ref, "Coroutines.await_left", "pid ")
    assert weft.get(actor.one.remote()) == 1


def test_a_coroutine_awaits_a_call_that_finds_no_slot(session):
    actor = Coroutines.options(max_concurrency=2).remote()
    weft.get(actor.meet.remote(actor))
    assert weft.get(actor.ask.remote(0)) == 1  # the second slot takes it
    expect_deadlock(actor.ask.remote(0, 0), "Coroutines.ask", "queued behind")
    assert weft.get(actor.one.remote()) == 1  # it goes on


def test_two_asyncio_actors_in_a_circle(session):
    a, b = (Coroutines.options(max_concurrency=1).remote() for _ in range(2))
    weft.get([a.meet.remote(b), b.meet.remote(a)])
    expect_deadlock(a.ask.remote(0, 0), "Coroutines.ask", "queued behind")
    assert weft.get([a.one.remote(), b.one.remote()]) == [1, 1]


def test_an_asyncio_actor_and_a_blocking_one_in_a_circle(session):
    a, b = Coroutines.options(max_concurrency=1).remote(), Peer.remote()
    weft.get([a.meet.remote(b), b.meet.remote(a)])
    expect_deadlock(a.ask.remote(0, 0), "Coroutines.ask", "Peer.ask")
    assert weft.get([a.one.remote(), b.one.remote()]) == [1, 1]


def test_a_coroutine_in_the_circle_recovers(session):
    actor = Coroutines.options(max_concurrency=1).remote()
    weft.get(actor.meet.remote(actor))
    assert weft.get(actor.ask_or_recover.remote(0)) == "recovered"


def test_asyncio_actors_with_free_slots(session):
    a, b = Coroutines.remote(), Coroutines.remote()
    weft.get([a.meet.remote(b), b.meet.remote(a)])
    assert weft.get(a.ask.remote(*[0] * 30)) == 1


@pytest.mark.parametrize("how", ["wait_for", "timeout", "later", "sibling", "thread"])
def test_a_coroutine_that_something_else_will_wake(session, how):
    """A timer, a task or a thread ends the await: no circle, though the object never comes."""
    if how == "timeout" and sys.version_info < (3, 11):
        pytest.skip("asyncio.timeout came with Python 3.11")
    actor = Coroutines.options(max_concurrency=1).remote()
    ref = actor.ask_in.remote(how, actor)
    with pytest.raises((weft.TaskCancelledError, TimeoutError, weft.TaskError)) as caught:
        weft.get(ref)
    assert "Deadlock" not in repr(caught.value)
    assert weft.get(actor.one.remote()) == 1


def test_a_coroutine_that_another_call_will_wake(session):
    actor = Coroutines.remote()
    ref = actor.wait_for_signal.remote()
    threading.Timer(1.5, actor.give_signal.remote).start()
    assert weft.get(ref) == 1


def test_coroutines_in_one_direction_never_raise(no_session):
    """Actor i awaits only those after it, with few slots and slow calls, so every call ends."""
    weft.init(num_cpus=2)

    @weft.remote
    class Member:
        async def meet(self, after):
            self.after = after

        async def work(self, seed):
            import asyncio

            draw = random.Random(seed)
            await asyncio.sleep(draw.choice([0, 0, 0.002, 0.05, 0.25]))
            if not self.after or draw.random() < 0.3:
                return await slow_one.remote(draw.choice([0, 0.3]))
            refs = [draw.choice(self.after).work.remote(draw.random()) for _ in range(draw.randint(1, 2))]
            if draw.random() < 0.5:
                return sum(await asyncio.gather(*refs))
            return sum([await ref for ref in refs])

    members = [Member.options(max_concurrency=1 + i % 2).remote() for i in range(4)]
    weft.get([member.meet.remote(members[i + 1 :]) for i, member in enumerate(members)])
    deadline = time.monotonic() + float(os.environ.get("WEFT_STRESS_SECONDS", "5"))
    rounds = 0
    while time.monotonic() < deadline:
        assert all(n >= 1 for n in weft.get([members[i % 3].work.remote(rounds * 100 + i) for i in range(6)]))
        rounds += 1
    assert rounds > 0


def test_explain_of_an_awaiting_coroutine(session, gate):
    @weft.remote
    def held():
        hold(gate.path)
        return 1

    @weft.remote
    class Awaits:
        async def run(self, refs):
            return await refs[0]

    actor = Awaits.remote()
    ref = actor.run.remote([held.remote()])
    wait_until(lambda: "'held' runs" in weft.explain(ref), what="it says what the coroutine awaits")
    assert "Awaits.run" in weft.explain(ref) and "timeout" not in weft.explain(ref)
    gate.open()
    assert weft.get(ref) == 1


def test_an_actor_with_a_timeout_in_the_circle(session):
    peer = Peer.remote()
    assert weft.get(peer.ask_with_timeout.remote(1.5, peer)) == "gave up"


def test_a_busy_actor_is_not_a_deadlock(session, gate):
    @weft.remote
    class Slow:
        def slow(self):
            hold(gate.path)
            return 1

        def one(self):
            return 2

    slow = Slow.remote()
    refs = [slow.slow.remote(), slow.one.remote()]
    wait_until(lambda: "turn" in weft.explain(refs[1]) or "queued" in weft.explain(refs[1]), what="it is queued")
    threading.Timer(1.5, gate.open).start()
    assert weft.get(refs) == [1, 2]


def test_a_resource_that_an_idle_actor_holds_may_come_free(no_session):
    weft.init(num_cpus=2, resources={"press": 1})

    @weft.remote(resources={"press": 1})
    class Printer:
        def one(self):
            return 1

    @weft.remote(resources={"press": 1})
    def printing():
        return 2

    handles = [Printer.remote()]
    assert weft.get(handles[0].one.remote()) == 1
    waiting = printing.remote()
    threading.Timer(1.5, handles.clear).start()
    wait_until(lambda: "actor Printer" in weft.explain(waiting), what="it says who holds the press")
    assert weft.get(waiting) == 2


def test_actors_that_call_each_other_in_one_direction_never_raise(no_session):
    """Many callers, slow calls, full queues: actor i calls only those after it, so every call ends."""
    weft.init(num_cpus=2)

    @weft.remote
    class Member:
        def meet(self, after):
            self.after = after

        def work(self, seed):
            draw = random.Random(seed)
            time.sleep(draw.choice([0, 0, 0.002, 0.05, 0.25]))
            if not self.after or draw.random() < 0.3:
                return 1
            refs = [draw.choice(self.after).work.remote(draw.random()) for _ in range(draw.randint(1, 2))]
            refs.append(same.remote(refs[0]))
            return sum(weft.get(refs))

    members = [Member.options(max_concurrency=1 + i % 2).remote() for i in range(5)]
    weft.get([member.meet.remote(members[i + 1 :]) for i, member in enumerate(members)])
    deadline = time.monotonic() + float(os.environ.get("WEFT_STRESS_SECONDS", "5"))
    rounds = 0
    while time.monotonic() < deadline:
        assert all(n >= 1 for n in weft.get([members[i % 3].work.remote(rounds * 100 + i) for i in range(8)]))
        rounds += 1
    assert rounds > 0


# ---- explain --------------------------------------------------------------------------------------------------------


def test_explain_of_what_runs_and_what_waits(session, gate):
    @weft.remote
    def slow():
        hold(gate.path)
        return 1

    running = slow.remote()
    waiting = same.options(name="later").remote(running)
    wait_until(lambda: "runs (pid" in weft.explain(running), what="it runs")
    text = weft.explain(waiting)
    assert "'later'" in text and "'slow'" in text
    gate.open()
    assert weft.get(waiting) == 1
    assert "is there" in weft.explain(waiting)
    assert "is there" in weft.explain(weft.put(1))


def test_explain_of_scarce_resources(no_session, gate):
    weft.init(num_cpus=2, resources={"press": 1})

    @weft.remote(resources={"press": 1})
    def printing():
        hold(gate.path)

    first = printing.remote()
    wait_until(lambda: "runs (pid" in weft.explain(first), what="the first one runs")
    second = printing.options(num_cpus=0).remote()
    wait_until(lambda: "1 press held by pid" in weft.explain(second), what="the second one waits for the press")
    text = weft.explain(second)
    assert "waits for a worker with 1 press" in text and "0 of 1 press free" in text
    gate.open()
    weft.get([first, second])


def test_explain_of_a_borrowed_object(session, gate):
    @weft.remote
    def slow():
        hold(gate.path)

    @weft.remote
    def asks(refs):
        return weft.explain(refs[0])

    ref = slow.remote()
    assert "'slow'" in weft.get(asks.remote([ref]))
    gate.open()


def test_explain_of_a_deadlock_says_so(session, tmp_path):
    path = str(tmp_path / "own")

    @weft.remote
    def persists():
        ref = left(path)
        try:
            weft.get(ref)
        except weft.DeadlockError:
            return "ended"

    ref = persists.remote()
    leave(path, ref)
    texts = []
    while not weft.wait([ref], timeout=0)[0]:
        texts.append(weft.explain(ref))
    assert weft.get(ref) == "ended"


@pytest.mark.parametrize("wrong", [None, 3, "x", [1]])
def test_explain_of_something_else(session, wrong):
    with pytest.raises(TypeError, match="ObjectRef"):
        weft.explain(wrong)


# ---- long waits -----------------------------------------------------------------------------------------------------


def test_a_long_wait_says_once_what_it_waits_for(no_session, gate, monkeypatch, caplog):
    monkeypatch.setenv("WEFT_LONG_WAIT_SECONDS", "0.5")
    weft.init(num_cpus=1)

    @weft.remote
    def slow():
        hold(gate.path)
        return 1

    threading.Timer(2.0, gate.open).start()
    with caplog.at_level(logging.WARNING, logger="weft"):
        assert weft.get(slow.remote(), timeout=30) == 1
    lines = [record.getMessage() for record in caplog.records if "waits for" in record.getMessage()]
    assert len(lines) == 1
    assert "'slow'" in lines[0] and "runs (pid" in lines[0]


def test_a_long_wait_goes_to_stderr():
    driver = run_driver(
        """
        import time, weft
        weft.init(num_cpus=1)

        @weft.remote
        def slow():
            time.sleep(1.5)

        weft.wait([slow.remote()])
        """,
        env={"WEFT_LONG_WAIT_SECONDS": "0.4"},
    )
    assert driver.stderr.count("waits for the result of task 'slow'") == 1


def test_long_waits_can_be_silent():
    driver = run_driver(
        """
        import time, weft
        weft.init(num_cpus=1)

        @weft.remote
        def slow():
            time.sleep(1.0)

        weft.get(slow.remote())
        """,
        env={"WEFT_LONG_WAIT_SECONDS": "0"},
    )
    assert "waits for" not in driver.stderr


def test_a_wrong_setting_is_refused(no_session, monkeypatch):
    monkeypatch.setenv("WEFT_LONG_WAIT_SECONDS", "soon")
    with pytest.raises(ValueError, match="WEFT_LONG_WAIT_SECONDS"):
        weft.init(num_cpus=1)
