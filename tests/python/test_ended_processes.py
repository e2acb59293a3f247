"""Nothing stays of ended processes in those that live on: no mapping, descriptor, channel or record."""

from __future__ import annotations

import contextlib
import gc
import os

import pytest
import weft
from helpers import wait_until
from weft import _observe

ROUNDS = int(os.environ.get("WEFT_TEST_ENDED_ACTORS", "60"))  # for a longer run
WARM_UP = 8  # first channels, segments and threads stay
WORKER = 2  # _observe: its role
SLACK = 6  # mappings and descriptors that come and go


def mappings(pid) -> int:
    with open(f"/proc/{pid}/maps") as file:
        return sum(1 for _ in file)


def descriptors(pid) -> int:
    """Without event logs, of which the daemon keeps those of the latest 64 that have ended."""
    links = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            links.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sum(1 for link in links if "weft-events" not in link)


def channels(pid) -> int:
    """Mappings of memory that is shared with other processes."""
    with open(f"/proc/{pid}/maps") as file:
        return sum(1 for line in file if "memfd:" in line)


def living_workers() -> int:
    return sum(1 for process in _observe.observe()["processes"] if not process["how"] and process["role"] == WORKER)


def come_and_go(rounds: int, use) -> None:
    """So many actors one after the other; `use` calls each."""
    for _ in range(rounds):
        use(actor_class().remote())
    wait_until(lambda: living_workers() <= 3, 20, "actors that were dropped have not ended")


def actor_class():
    @weft.remote(num_cpus=0)
    class Brief:
        def ping(self):
            return os.getpid()

        def large(self):
            return bytes(500_000)

        def call(self, other):
            return weft.get(other.ping.remote())

        def look_at(self, other):
            return len(weft.get(other.large.remote()))

        def channels(self):
            return channels("self")

        def threads(self):
            return len(os.listdir("/proc/self/task"))

    return Brief


def once_settled(count, before, what):
    gc.collect()
    wait_until(lambda: count() <= before + SLACK, 20, f"{what}: {before} before, and now more: ")
    assert count() <= before + SLACK, f"{what}: {before} before, {count()} now"


@pytest.fixture
def daemon(no_session):
    weft.init(num_cpus=2)
    return _observe.observe()["node"]["daemon_pid"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("use", ["ping", "large"])
def test_the_caller_forgets_actors_that_have_ended(daemon, use):
    def call(actor):
        value = weft.get(getattr(actor, use).remote())
        assert value

    come_and_go(WARM_UP, call)
    before = mappings("self"), descriptors("self"), mappings(daemon), descriptors(daemon)
    come_and_go(ROUNDS, call)
    once_settled(lambda: mappings("self"), before[0], "mappings of the driver")
    once_settled(lambda: descriptors("self"), before[1], "descriptors of the driver")
    once_settled(lambda: mappings(daemon), before[2], "mappings of the daemon")
    once_settled(lambda: descriptors(daemon), before[3], "descriptors of the daemon")


@pytest.mark.parametrize("use", ["call", "look_at"])
@pytest.mark.parametrize("threads", [1, 4])
def test_an_actor_forgets_its_callers(daemon, use, threads):
    lasting = actor_class().options(max_concurrency=threads).remote()

    def call(actor):
        weft.get(getattr(actor, use).remote(lasting))

    come_and_go(WARM_UP, call)
    before = weft.get(lasting.channels.remote())
    come_and_go(ROUNDS // 2, call)
    once_settled(lambda: weft.get(lasting.channels.remote()), before, "shared mappings of the actor")
    assert weft.get(lasting.ping.remote())


def test_what_an_ended_actor_has_returned_can_be_looked_at(daemon):
    numpy = pytest.importorskip("numpy")

    @weft.remote
    class Maker:
        def make(self, value):
            return numpy.full(200_000, value)

    kept, ended = [], []
    for value in range(4):
        maker = Maker.remote()
        kept.append(weft.get(maker.make.remote(value)))
        ended.append(maker)
    del maker
    ended.clear()
    gc.collect()
    wait_until(lambda: living_workers() <= 2, 20, "actors that were dropped have not ended")
    come_and_go(WARM_UP, lambda actor: weft.get(actor.large.remote()))
    for value, array in enumerate(kept):
        assert (array == value).all()
    with_arrays = channels("self")
    del kept, array
    gc.collect()
    # The last of them was freed, so nobody may look at what its maker has written.
    wait_until(lambda: channels("self") < with_arrays, 20, "segments of ended actors are still mapped")
