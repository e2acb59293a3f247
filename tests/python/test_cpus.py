"""Never more bodies at once than CPUs: only a task in its own get or wait, for something pending, lends its CPU."""

from __future__ import annotations

import os
import struct
import time

import numpy as np
import pytest
import weft
from helpers import wait_until

CPUS = 2


class Bodies:
    """Where bodies note when they begin and end, and how many ran at once at most."""

    def __init__(self, path):
        self.path = str(path)
        open(self.path, "wb").close()

    def note(self, step: int) -> None:
        record = struct.pack("<qqq", time.monotonic_ns(), step, os.getpid())
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, record)
        finally:
            os.close(file)

    def __enter__(self):
        self.note(1)

    def __exit__(self, *_):
        self.note(-1)

    def records(self) -> list[tuple[int, int, int]]:
        with open(self.path, "rb") as file:
            return sorted(struct.iter_unpack("<qqq", file.read()))

    def most(self) -> int:
        most = now = 0
        for _, step, _ in self.records():
            now += step
            most = max(most, now)
        assert now == 0
        return most

    def workers(self) -> int:
        return len({pid for _, _, pid in self.records()})


@pytest.fixture
def bodies(tmp_path, no_session):
    return Bodies(tmp_path / "bodies")


@pytest.mark.parametrize(
    ("size", "count"), [(0, 400), (1_000, 400), (20_000, 400), (160_000, 300), (2_000_000, 60), (100_000_000, 12)]
)
def test_results_in_the_store_lend_no_cpu(bodies, size, count):
    with weft.init(num_cpus=CPUS, object_store_memory=1_600_000_000):

        @weft.remote
        def make(i):
            with bodies:
                # Long enough to overlap with others, if others run.
                end = time.monotonic() + (0.002 if size < 10_000_000 else 0.02)
                while time.monotonic() < end:
                    pass
                return np.full(size, i % 100, dtype=np.uint8)

        for i, ref in enumerate([make.remote(i) for i in range(count)]):
            assert len(weft.get(ref)) == size, i
    assert bodies.most() <= CPUS
    assert bodies.workers() <= CPUS


def test_gets_of_what_is_ready_lend_no_cpu(bodies):
    with weft.init(num_cpus=CPUS):
        small, large = weft.put(1), weft.put(np.zeros(300_000))

        @weft.remote
        def look(refs):
            with bodies:
                return sum(np.sum(weft.get(ref)) for ref in refs) + len(weft.wait(refs, num_returns=2)[0])

        assert weft.get([look.remote([small, large]) for _ in range(200)]) == [3] * 200
    assert bodies.most() <= CPUS
    assert bodies.workers() <= CPUS


def test_a_full_store_makes_few_workers(bodies):
    """Twenty results of which two fit: those that wait for room lend their CPU, but only so many of them."""
    with weft.init(num_cpus=CPUS, object_store_memory=50_000_000):

        @weft.remote(max_retries=0)
        def make(i):
            with bodies:
                pass
            return np.full(20_000_000, i, dtype=np.uint8)

        @weft.remote
        def first(array):
            return int(array[0])

        made = [first.remote(make.remote(i)) for i in range(20)]
        assert weft.get(made, timeout=60) == list(range(20))
    assert bodies.workers() <= 3 * CPUS


def test_a_full_store_is_emptied_beside_an_idle_actor(bodies):
    """Also if what was lent first went to tasks that wait for room too: an actor without calls runs nothing, so the
    tasks that take the values get a CPU before anybody is told that the store is full."""
    with weft.init(num_cpus=1, object_store_memory=50_000_000):

        @weft.remote
        class Idle:
            def ping(self):
                return 1

        @weft.remote(max_retries=0)
        def make(i):
            with bodies:
                pass
            return np.full(20_000_000, i, dtype=np.uint8)

        @weft.remote
        def first(array):
            return int(array[0])

        actor = Idle.remote()
        assert weft.get(actor.ping.remote()) == 1
        made = [make.remote(i) for i in range(4)]  # two fit, one lends, and one has what was lent
        wait_until(lambda: len(bodies.records()) == 8, what="all wait for room")
        read = [first.remote(ref) for ref in made]
        del made
        assert weft.get(read, timeout=60) == list(range(4))
        del actor


def test_values_in_containers_are_read_before_more_are_made(tmp_path):
    path = str(tmp_path / "order")
    with weft.init(num_cpus=1):

        @weft.remote
        def make():
            return np.zeros(100_000)

        @weft.remote
        def note(name, values):
            with open(path, "a") as file:
                file.write(name)
            return len(values)

        @weft.remote
        def block():
            wait_until(lambda: os.path.exists(path), seconds=60)

        made = make.remote()
        weft.wait([made])
        blocked = block.remote()
        rest = [note.remote("r", [i]) for i in range(300)]
        readers = [note.remote("c", [i, made]) for i in range(3)]
        open(path, "w").close()
        weft.get([blocked, *rest, *readers])
    with open(path) as file:
        order = file.read()
    # Up to 256 may have been on their way to the worker before.
    assert order.index("c") <= 256 and order.rindex("c") < 290, order


def test_a_lent_cpu_is_given_back(bodies, tmp_path):
    """A task that goes on takes its CPU back: its borrower stops after its present task, though it has more."""
    go_on = str(tmp_path / "go on")
    with weft.init(num_cpus=1):

        @weft.remote(num_cpus=0)
        class Gate:
            def open(self):
                wait_until(lambda: os.path.exists(go_on), seconds=60)

        @weft.remote
        def parent(gate):
            weft.get(gate.open.remote())
            with bodies:
                wait_until(lambda: False, seconds=600)

        @weft.remote
        def other():
            with bodies:
                end = time.monotonic() + 0.001
                while time.monotonic() < end:
                    pass

        gate = Gate.remote()
        weft.get(weft.put(gate))
        parent.remote(gate)
        refs = [other.remote() for _ in range(60_000)]  # a minute of work
        wait_until(lambda: len(bodies.records()) > 20, seconds=30, what="others use the CPU that was lent")
        open(go_on, "w").close()

        def running() -> int:
            return sum(step for _, step, _ in bodies.records())

        def only_the_parent_runs():
            before = len(bodies.records())
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                if len(bodies.records()) != before or running() != 1:
                    return False
            return True

        wait_until(only_the_parent_runs, seconds=30)
        assert len(weft.wait(refs, num_returns=len(refs), timeout=0)[1]) > 0


@pytest.mark.parametrize("megabytes", [50, 51, 53, 60])
def test_a_result_larger_than_the_store_is_refused(megabytes):
    """Also if it would fit beside what its worker has reserved: it must not ask for that in turns, for ever."""
    with weft.init(num_cpus=1, object_store_memory=50_000_000):

        @weft.remote(max_retries=0)
        def make():
            return np.zeros(megabytes * 1_000_000, dtype=np.uint8)

        with pytest.raises(weft.ObjectStoreFullError, match=f"{megabytes} MB"):
            weft.get(make.remote(), timeout=60)


def test_tasks_that_take_one_stored_value_run_in_order(tmp_path):
    path = str(tmp_path / "order")
    with weft.init(num_cpus=1):

        @weft.remote
        def make():
            return np.zeros(100_000)

        @weft.remote
        def take(array, i):
            with open(path, "a") as file:
                file.write(f"{i}\n")

        made = make.remote()
        weft.get([take.remote(made, i) for i in range(12)])
    with open(path) as file:
        assert [int(line) for line in file] == list(range(12))
