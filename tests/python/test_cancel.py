"""Cancelling tasks and calls of actors."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
import weft
from helpers import hold, note, notes, wait_until

pytestmark = pytest.mark.usefixtures("session")


@weft.remote
def sleep(path, seconds=60):
    note(path)
    time.sleep(seconds)
    note(path, "woke")
    return "slept"


def cancelled(ref, seconds=10.0):
    with pytest.raises(weft.TaskCancelledError) as caught:
        weft.get(ref, timeout=seconds)
    return caught.value


def test_a_queued_task(gate, tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote(num_cpus=4)
    def whole(gate):
        hold(gate)

    @weft.remote(num_cpus=4)
    def never():
        note(path)

    blocker = whole.remote(gate.path)
    ref = never.remote()
    weft.cancel(ref)
    assert "never" in str(cancelled(ref))
    gate.open()
    weft.get(blocker)
    weft.get(whole.remote(gate.path))
    assert notes(path) == []


def test_a_task_that_waits_for_its_argument(gate, tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote
    def late():
        hold(gate_path)

    @weft.remote
    def after(_):
        note(path)

    gate_path = gate.path
    first = late.remote()
    ref = after.remote(first)
    weft.cancel(ref)
    cancelled(ref)
    gate.open()
    weft.get(first)
    assert notes(path) == []


def test_a_running_sleep(tmp_path):
    path = str(tmp_path / "notes")
    started = time.monotonic()
    ref = sleep.remote(path)
    wait_until(lambda: notes(path))
    weft.cancel(ref)
    cancelled(ref)
    assert time.monotonic() - started < 20
    assert "woke" not in notes(path)


def test_the_worker_goes_on_after_a_cancelled_task(tmp_path):
    for i in range(5):
        path = str(tmp_path / f"notes{i}")
        ref = sleep.remote(path)
        wait_until(lambda path=path: notes(path))
        weft.cancel(ref)
        cancelled(ref)
    assert weft.get(sleep.remote(str(tmp_path / "last"), 0), timeout=30) == "slept"


def test_a_task_that_catches_it_can_clean_up(tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote
    def careful():
        try:
            note(path)
            time.sleep(60)
        finally:
            note(path, "cleaned")

    ref = careful.remote()
    wait_until(lambda: notes(path))
    weft.cancel(ref)
    cancelled(ref)
    wait_until(lambda: "cleaned" in notes(path))


def test_force_ends_a_task_that_does_not_listen(tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote(max_retries=3)
    def deaf():
        note(path)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                note(path, "ignored")

    ref = deaf.remote()
    wait_until(lambda: notes(path))
    weft.cancel(ref, force=True)
    with pytest.raises((weft.TaskCancelledError, weft.WorkerCrashedError)):
        weft.get(ref, timeout=30)
    pid = int(notes(path)[0])
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the worker lives on")
    assert len([line for line in notes(path) if line.isdigit()]) == 1, "it was retried"


def test_recursive(tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote
    def parent():
        return weft.get([sleep.remote(path) for _ in range(2)])

    ref = parent.remote()
    wait_until(lambda: len(notes(path)) == 2, 30)
    weft.cancel(ref)
    cancelled(ref)
    # Its children end as well: both workers are free for others at once.
    assert weft.get([sleep.remote(str(tmp_path / "x"), 0) for _ in range(8)], timeout=30) == ["slept"] * 8
    assert "woke" not in notes(path)


def test_not_recursive(tmp_path, gate):
    path = str(tmp_path / "notes")

    @weft.remote
    def child():
        note(path, "began")
        hold(gate_path)
        note(path, "ended")

    @weft.remote
    def parent():
        weft.get(child.remote())

    gate_path = gate.path
    ref = parent.remote()
    wait_until(lambda: notes(path) == ["began"], 30)
    weft.cancel(ref, recursive=False)
    cancelled(ref)
    gate.open()
    wait_until(lambda: notes(path) == ["began", "ended"])


def test_twice_and_finished(tmp_path):
    path = str(tmp_path / "notes")
    ref = sleep.remote(path, 0)
    assert weft.get(ref) == "slept"
    weft.cancel(ref)
    weft.cancel(ref, force=True)
    assert weft.get(ref) == "slept"
    running = sleep.remote(path)
    wait_until(lambda: len(notes(path)) >= 3)
    weft.cancel(running)
    weft.cancel(running)
    cancelled(running)
    weft.cancel(running)
    cancelled(running)
    stored = weft.put(1)
    weft.cancel(stored)
    assert weft.get(stored) == 1


def test_what_depends_on_it_fails(tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote
    def after(value):
        return value

    ref = sleep.remote(path)
    last = after.remote(ref)
    wait_until(lambda: notes(path))
    weft.cancel(ref)
    cancelled(last)


def test_all_returns_of_a_task(tmp_path):
    path = str(tmp_path / "notes")
    first, second = sleep.options(num_returns=2).remote(path)
    wait_until(lambda: notes(path))
    weft.cancel(second)
    cancelled(first)
    cancelled(second)


def test_a_task_that_waits_in_get(tmp_path, gate):
    @weft.remote
    def never(path):
        hold(path)

    @weft.remote
    def waits(refs, path):
        note(path)
        return weft.get(refs[0])

    path = str(tmp_path / "notes")
    inner = never.remote(gate.path)
    ref = waits.remote([inner], path)
    wait_until(lambda: notes(path))
    weft.cancel(ref)
    cancelled(ref)
    gate.open()
    assert weft.get(inner, timeout=30) is None


def test_by_a_borrower(tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote
    def cancel_it(refs):
        weft.cancel(refs[0])

    ref = sleep.remote(path)
    wait_until(lambda: notes(path))
    weft.get(cancel_it.remote([ref]))
    cancelled(ref)


@weft.remote
class Worker:
    def __init__(self):
        self.done = []

    def sleep(self, path, seconds=60):
        note(path)
        time.sleep(seconds)
        self.done.append("slept")

    def work(self, item):
        self.done.append(item)
        return item

    def all(self):
        return self.done


def test_queued_calls_of_an_actor(gate, tmp_path):
    path = str(tmp_path / "notes")
    actor = Worker.remote()
    running = actor.sleep.remote(path)
    wait_until(lambda: notes(path))
    queued = [actor.work.remote(i) for i in range(3)]
    weft.cancel(queued[1])
    cancelled(queued[1])
    weft.cancel(running)
    cancelled(running)
    assert weft.get([queued[0], queued[2]], timeout=30) == [0, 2]
    assert weft.get(actor.all.remote()) == [0, 2]


def test_a_call_that_waits_for_a_place_in_its_group(gate, tmp_path):
    @weft.remote(concurrency_groups={"one": 1})
    class Grouped:
        def __init__(self):
            self.seen = []

        @weft.method(concurrency_group="one")
        def wait(self, path):
            self.seen.append("wait")
            hold(path)

        @weft.method(concurrency_group="one")
        def work(self, item):
            self.seen.append(item)

        def linger(self, path):
            note(path)
            hold(path + " that nobody makes")

        def all(self):
            return self.seen

    path = str(tmp_path / "notes")
    actor = Grouped.remote()
    running = actor.wait.remote(gate.path)
    queued = [actor.work.remote(i) for i in range(3)]
    wait_until(lambda: weft.get(actor.all.remote()) == ["wait"])
    other = actor.linger.remote(path)
    wait_until(lambda: notes(path))
    weft.cancel(queued[1])
    # Cancels come in their order: when the next one has come, so has this one.
    weft.cancel(other)
    cancelled(other)
    gate.open()
    cancelled(queued[1])
    weft.get([running, queued[0], queued[2]], timeout=30)
    assert weft.get(actor.all.remote()) == ["wait", 0, 2]


def test_a_call_that_waits_for_a_place_in_its_group_of_an_asyncio_actor(gate):
    @weft.remote(concurrency_groups={"one": 1})
    class Grouped:
        def __init__(self):
            self.seen = []

        @weft.method(concurrency_group="one")
        async def wait(self, path):
            while not os.path.exists(path):
                await asyncio.sleep(0.01)

        @weft.method(concurrency_group="one")
        async def work(self, item):
            self.seen.append(item)

        @weft.method(concurrency_group="one")
        def work_at_once(self, item):
            self.seen.append(item)

        async def for_ever(self):
            await asyncio.Event().wait()

        async def all(self):
            return self.seen

    actor = Grouped.remote()
    running = actor.wait.remote(gate.path)
    queued = [actor.work.remote(0), actor.work.remote(1), actor.work_at_once.remote(2), actor.work_at_once.remote(3)]
    weft.get(actor.all.remote())
    other = actor.for_ever.remote()
    weft.get(actor.all.remote())
    weft.cancel(queued[1])
    weft.cancel(queued[3])
    # Cancels come in their order: when the next one has come, so have these.
    weft.cancel(other)
    cancelled(other)
    gate.open()
    cancelled(queued[1])
    cancelled(queued[3])
    weft.get([running, queued[0], queued[2]], timeout=30)
    assert weft.get(actor.all.remote()) == [0, 2]


def test_force_is_refused_for_calls_of_actors(tmp_path):
    path = str(tmp_path / "notes")
    actor = Worker.remote()
    ref = actor.sleep.remote(path)
    with pytest.raises(ValueError, match="force"):
        weft.cancel(ref, force=True)
    weft.cancel(ref)
    cancelled(ref)


def test_coroutines_are_cancelled():
    @weft.remote
    class Async:
        def __init__(self):
            self.seen = []

        async def wait(self):
            try:
                self.seen.append("began")
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.seen.append("cancelled")
                raise

        async def all(self):
            return self.seen

    actor = Async.remote()
    ref = actor.wait.remote()
    wait_until(lambda: weft.get(actor.all.remote()) == ["began"])
    weft.cancel(ref)
    cancelled(ref)
    wait_until(lambda: weft.get(actor.all.remote()) == ["began", "cancelled"])


def test_many_queued_tasks():
    @weft.remote(num_cpus=4)
    def slow():
        time.sleep(60)

    started = time.monotonic()
    refs = [slow.remote() for _ in range(500)]
    for ref in refs:
        weft.cancel(ref)
    for ref in refs:
        cancelled(ref, 30)
    assert time.monotonic() - started < 30
