"""Workers that die, and what `max_retries` makes of it."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest
import weft
from helpers import hold, note, notes, wait_until

pytestmark = pytest.mark.usefixtures("session")


def exit_now():
    os._exit(3)


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


def abort():
    os.abort()


DEATHS = [exit_now, kill_myself, segfault, abort]


@weft.remote
def die(path, how, times):
    """Dies the first `times` times it runs."""
    note(path)
    if len(notes(path)) <= times:
        how()
    return "survived"


@pytest.mark.parametrize("how", DEATHS)
def test_retried_as_asked(tmp_path, how):
    path = str(tmp_path / "runs")
    assert weft.get(die.options(max_retries=2).remote(path, how, 2), timeout=60) == "survived"
    assert len(notes(path)) == 3
    assert len(set(notes(path))) == 3  # each in a process of its own


@pytest.mark.parametrize("how", DEATHS)
def test_no_retries_means_one_start(tmp_path, how):
    path = str(tmp_path / "runs")
    with pytest.raises(weft.WorkerCrashedError) as caught:
        weft.get(die.options(max_retries=0).remote(path, how, 1), timeout=60)
    assert len(notes(path)) == 1
    assert "die" in str(caught.value)
    assert notes(path)[0] in str(caught.value)  # the process


def test_retries_run_out(tmp_path):
    path = str(tmp_path / "runs")
    with pytest.raises(weft.WorkerCrashedError):
        weft.get(die.remote(path, exit_now, 100), timeout=60)
    assert len(notes(path)) == 4  # the default is 3 retries


def test_the_message_says_how(tmp_path):
    with pytest.raises(weft.WorkerCrashedError, match="9|SIGKILL"):
        weft.get(die.options(max_retries=0).remote(str(tmp_path / "a"), kill_myself, 1), timeout=60)
    with pytest.raises(weft.WorkerCrashedError, match="3"):
        weft.get(die.options(max_retries=0).remote(str(tmp_path / "b"), exit_now, 1), timeout=60)


def test_killed_from_outside(tmp_path, gate):
    path = str(tmp_path / "runs")

    @weft.remote(max_retries=1)
    def work():
        note(path)
        hold(gate.path)
        return os.getpid()

    ref = work.remote()
    wait_until(lambda: len(notes(path)) == 1)
    os.kill(int(notes(path)[0]), signal.SIGKILL)
    wait_until(lambda: len(notes(path)) == 2)
    gate.open()
    assert weft.get(ref, timeout=60) == int(notes(path)[1])


def test_death_is_noticed_within_a_second(tmp_path):
    path = str(tmp_path / "runs")
    started = time.monotonic()
    with pytest.raises(weft.WorkerCrashedError):
        weft.get(die.options(max_retries=0).remote(path, kill_myself, 1), timeout=60)
    assert time.monotonic() - started < 1.5


def test_others_are_not_harmed(tmp_path):
    """Tasks queued behind one that dies did not run, so they lose no retry, and run exactly once."""
    path = str(tmp_path / "runs")

    @weft.remote(max_retries=0)
    def count(i):
        note(path, str(i))
        return i

    before = [count.remote(i) for i in range(50)]
    crash = die.options(max_retries=0).remote(str(tmp_path / "crash"), kill_myself, 1)
    after = [count.remote(i) for i in range(50, 100)]
    with pytest.raises(weft.WorkerCrashedError):
        weft.get(crash, timeout=60)
    assert weft.get(before + after, timeout=60) == list(range(100))
    assert sorted(map(int, notes(path))) == list(range(100))


def test_results_outlive_the_worker_that_made_them():
    numpy = pytest.importorskip("numpy")

    @weft.remote
    def make():
        return os.getpid(), numpy.arange(500_000)

    ref = make.remote()
    pid, array = weft.get(ref)
    os.kill(pid, signal.SIGKILL)
    assert (array == numpy.arange(500_000)).all()
    assert (weft.get(ref)[1] == array).all()
    assert weft.get(weft.remote(lambda x: int(x[1].sum())).remote(ref), timeout=60) == int(array.sum())


def test_owner_dies():
    """A reference whose owner is a worker that died is an error, not a hang."""

    @weft.remote(max_retries=0)
    def own():
        return os.getpid(), [weft.remote(lambda: time.sleep(600)).remote()]

    pid, (inner,) = weft.get(own.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises((weft.OwnerDiedError, weft.WorkerCrashedError, weft.ObjectLostError)):
        weft.get(inner, timeout=20)


def test_nested_task_dies(tmp_path):
    @weft.remote
    def outer(path):
        try:
            weft.get(die.options(max_retries=0).remote(path, kill_myself, 1))
        except weft.WorkerCrashedError as error:
            return f"caught {type(error).__name__}"

    assert weft.get(outer.remote(str(tmp_path / "runs")), timeout=60) == "caught WorkerCrashedError"


def test_exit_by_sys_exit():
    @weft.remote(max_retries=0)
    def leave():
        raise SystemExit(4)

    with pytest.raises((SystemExit, weft.WorkerCrashedError)):
        weft.get(leave.remote(), timeout=60)
    assert weft.get(weft.remote(lambda: 1).remote(), timeout=60) == 1


# ---- exceptions are results -----------------------------------------------------------------------------------------


@weft.remote
def flaky(path, error, times):
    note(path)
    if len(notes(path)) <= times:
        raise error
    return len(notes(path))


def test_exceptions_are_not_retried_unless_asked(tmp_path):
    path = str(tmp_path / "runs")
    with pytest.raises(ValueError):
        weft.get(flaky.remote(path, ValueError(), 1))
    assert len(notes(path)) == 1


def test_exceptions_are_retried_when_asked(tmp_path):
    path = str(tmp_path / "runs")
    assert weft.get(flaky.options(retry_exceptions=True).remote(path, ValueError(), 2), timeout=60) == 3


def test_retried_exceptions_run_out(tmp_path):
    path = str(tmp_path / "runs")
    with pytest.raises(ValueError, match="always"):
        weft.get(
            flaky.options(retry_exceptions=True, max_retries=2).remote(path, ValueError("always"), 100), timeout=60
        )
    assert len(notes(path)) == 3


def test_only_the_listed_exceptions_are_retried(tmp_path):
    listed = flaky.options(retry_exceptions=[OSError, KeyError])
    assert weft.get(listed.remote(str(tmp_path / "a"), FileNotFoundError(), 1), timeout=60) == 2
    with pytest.raises(ValueError):
        weft.get(listed.remote(str(tmp_path / "b"), ValueError(), 1), timeout=60)
    assert len(notes(str(tmp_path / "b"))) == 1


# ---- odd tasks ------------------------------------------------------------------------------------------------------


def test_task_that_recurses_without_end():
    @weft.remote
    def recurse():
        return recurse.__wrapped__()

    with pytest.raises(RecursionError):
        weft.get(recurse.remote(), timeout=60)


def test_task_that_forks():
    @weft.remote
    def fork():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    assert weft.get(fork.remote(), timeout=60) == 0


def test_task_that_starts_threads_that_stay():
    import threading

    @weft.remote
    def start_thread():
        threading.Thread(target=time.sleep, args=(600,)).start()
        return 1

    assert weft.get(start_thread.remote(), timeout=60) == 1


def test_task_that_closes_descriptors():
    @weft.remote(max_retries=0)
    def close_all():
        os.closerange(3, 1000)
        return 1

    try:
        weft.get(close_all.remote(), timeout=60)
    except weft.WorkerCrashedError:
        pass
    assert weft.get(weft.remote(lambda: 2).remote(), timeout=60) == 2


def test_task_that_writes_through_to_shared_memory():
    numpy = pytest.importorskip("numpy")
    ref = weft.put(numpy.zeros(1_000_000))

    @weft.remote(max_retries=0)
    def scribble(array):
        ctypes.memset(array.ctypes.data, 1, 8)

    with pytest.raises(weft.WorkerCrashedError):
        weft.get(scribble.remote(ref), timeout=60)
    assert (weft.get(ref) == 0).all()


def test_task_that_changes_its_surroundings(tmp_path):
    @weft.remote
    def change():
        os.chdir(str(tmp_path))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    weft.get(change.remote())
    assert weft.get(weft.remote(lambda: 1).remote(), timeout=60) == 1


def test_timeout_of_get_leaves_the_task_running(gate):
    @weft.remote
    def work():
        hold(gate.path)
        return 1

    ref = work.remote()
    with pytest.raises(weft.GetTimeoutError):
        weft.get(ref, timeout=0.05)
    gate.open()
    assert weft.get(ref, timeout=60) == 1


def test_zygote_killed(no_session):
    from helpers import descendants

    weft.init(num_cpus=2)
    weft.get(weft.remote(lambda: 1).remote())

    def command(pid):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return file.read()
        except OSError:
            return b""

    python = [pid for pid in descendants(os.getpid()) if b"_zygote" in command(pid)]
    for pid in python:  # the zygote and the workers it made: all share its command line
        os.kill(pid, signal.SIGKILL)
    assert weft.get(weft.remote(lambda: 2).remote(), timeout=60) == 2
