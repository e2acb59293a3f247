"""Many threads that wait in get, and one that waits for many objects."""

from __future__ import annotations

import resource
import threading
import time

import pytest
import weft
from helpers import hold
from test_waiting import leave, same, wait_for_left


@weft.remote
def held(path):
    hold(path)
    return 1


@weft.remote
def fails(path=None):
    if path:
        hold(path)
    raise ValueError("of this one")


def test_get_of_several_raises_when_one_has_failed(session, gate):
    for refs in ([held.remote(gate.path), fails.remote()], [fails.remote(), held.remote(gate.path)]):
        with pytest.raises(ValueError, match="of this one"):
            weft.get(refs, timeout=30)  # the other one is held all the time
    failed = fails.remote()
    weft.wait([failed])
    with pytest.raises(ValueError, match="of this one"):
        weft.get([refs[1], failed], timeout=0)


def test_wait_does_not_end_with_a_failure(session, gate):
    slow, failed = held.remote(gate.path), fails.remote()
    assert weft.wait([slow, failed]) == ([failed], [slow])
    assert weft.wait([slow, failed], num_returns=2, timeout=0.2) == ([failed], [slow])
    gate.open()
    assert weft.wait([slow, failed], num_returns=2, timeout=30) == ([slow, failed], [])


def test_a_failure_among_thousands_of_pending_results_is_told_at_once(session, gate, tmp_path):
    trigger = str(tmp_path / "trigger")
    gated = held.remote(gate.path)
    refs = [same.remote(gated) for _ in range(5000)]
    refs.insert(2500, fails.remote(trigger))
    threading.Timer(0.3, lambda: open(trigger, "w").close()).start()
    with pytest.raises(ValueError, match="of this one"):
        weft.get(refs, timeout=30)
    gate.open()
    assert weft.get(refs[:2500] + refs[2501:], timeout=60) == [1] * 5000


def test_threads_that_wait_cost_nothing_and_are_all_woken(session, gate):
    """Each for a result of its own, or all for the same: what they wait for is looked into now and then, for all."""
    gated = held.remote(gate.path)
    refs = [gated] * 150 + [same.remote(gated) for _ in range(150)]
    results = []
    threads = [threading.Thread(target=lambda ref=ref: results.append(weft.get(ref))) for ref in refs]
    for thread in threads:
        thread.start()
    time.sleep(0.5)  # until each has waited long enough to be looked into
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(1.0)  # the time that is measured
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.2
    gate.open()
    for thread in threads:
        thread.join(30)
    assert results == [1] * 300


def test_threads_that_wait_for_the_same_deadlock_all_hear_of_it(session, tmp_path):
    left_at = str(tmp_path / "left")
    ref = wait_for_left.remote(left_at)
    errors = []

    def get():
        try:
            weft.get(ref)
        except weft.DeadlockError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=get) for _ in range(20)]
    for thread in threads:
        thread.start()
    leave(left_at, ref)
    for thread in threads:
        thread.join(20)
    assert len(errors) == 20 and all("can never end" in error for error in errors)


def test_threads_with_time_limits_end_in_time(session, gate):
    gated = held.remote(gate.path)
    late = []

    def get(seconds):
        began = time.monotonic()
        try:
            weft.get(gated, timeout=seconds)
        except weft.GetTimeoutError:
            late.append(time.monotonic() - began - seconds)

    threads = [threading.Thread(target=get, args=(0.2 + 0.02 * i,)) for i in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(late) == 30 and min(late) >= 0 and max(late) < 5
