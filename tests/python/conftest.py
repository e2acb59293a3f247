from __future__ import annotations

import signal

import pytest
import weft

CPUS = 4  # more than the machine may have: enough for tasks that wait for each other


# Files that take longest: if several run at a time, they begin first.
LONG = (
    "test_partitions",
    "test_cluster_head",
    "test_waiting",
    "test_cluster_objects",
    "test_redis_faults",
    "test_standstill",
)


def pytest_collection_modifyitems(items):
    def rank(item):
        name = item.module.__name__
        return LONG.index(name) if name in LONG else len(LONG)

    items.sort(key=rank)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that failed may have left the shared session in any state: the next one gets a fresh session."""
    outcome = yield
    if outcome.get_result().failed:
        weft.shutdown()


@pytest.fixture
def session():
    """A running session, shared by the tests that do not stop it."""
    if not weft.is_initialized():
        weft.init(num_cpus=CPUS)
    return weft


@pytest.fixture
def no_session():
    """No session before, and none after."""
    weft.shutdown()
    yield
    weft.shutdown()


@pytest.fixture
def ctrl_c():
    """SIGINT interrupts this process and those that it starts, also if the tests were started without (nohup)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def gate(tmp_path):
    """A gate that tasks wait at (helpers.hold(gate.path)) until the test opens it; open at the end in any case."""

    class Gate:
        path = str(tmp_path / "gate")

        def open(self):
            open(self.path, "w").close()

    made = Gate()
    yield made
    made.open()
