"""Objects of owners that have ended are freed when nobody holds them, and not before."""

from __future__ import annotations

import gc
import os
import signal
import time

import pytest
import weft
from helpers import hold, wait_until
from weft import _observe

numpy = pytest.importorskip("numpy")

STORE = 30_000_000
ACTORS = int(os.environ.get("WEFT_TEST_ORPHANED_ACTORS", "100"))  # for a longer run
SIZE = 100_000  # of float64: 800 kB


def left_behind() -> int:
    """What the store holds that no living process has reserved."""
    seen = _observe.observe()
    living = sum(process["store_bytes"] for process in seen["processes"] if not process["how"])
    return seen["node"]["store_used_bytes"] - living


def nothing_is_left() -> None:
    wait_until(lambda: left_behind() == 0, 20, f"{left_behind()} bytes of dead processes are left")


@pytest.fixture
def small_store(no_session):
    weft.init(num_cpus=2, object_store_memory=STORE)
    yield
    nothing_is_left()


def keeper_class():
    """A class that is sent by value: its workers need not import NumPy."""

    @weft.remote
    class Keeper:
        """Owns what it puts, and the results of its calls."""

        def __init__(self):
            self.mine = []

        def put(self):
            self.mine.append(weft.put(bytes(800_000)))
            return os.getpid()

        def lend(self, value):
            import numpy

            self.mine.append(weft.put(numpy.full(100_000, value)))
            return [self.mine[-1]]

        def call(self, other):
            self.mine.append(other.make.remote())
            weft.wait(self.mine[-1:])
            return os.getpid()

        def make(self):
            return bytes(800_000)

        def begin(self, other, begun, gate):
            self.mine.append(other.make_slowly.remote(begun, gate))

        def make_slowly(self, begun, gate):
            open(begun, "w").close()
            hold(gate)
            return bytes(800_000)

        def written(self):
            """Bytes in this process's segment, whatever process owns them."""
            return weft._core.stats()["store_bytes"]

        def exit(self):
            os._exit(3)

    return Keeper


def drop(keeper, pid):
    del keeper


def kill(keeper, pid):
    weft.kill(keeper)


def exit_(keeper, pid):
    keeper.exit.remote()


def kill_9(keeper, pid):
    os.kill(pid, signal.SIGKILL)


ENDS = [drop, kill, exit_, kill_9]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_what_ended_actors_have_put_is_freed(small_store, end):
    """Hundreds of them, of which the store could hold some thirty."""
    Keeper = keeper_class()
    for _ in range(ACTORS):
        keeper = Keeper.remote()
        end(keeper, weft.get(keeper.put.remote()))
        del keeper


def test_what_crashed_tasks_have_put_is_freed(small_store):
    @weft.remote(max_retries=0)
    def crash():
        refs = [weft.put(numpy.ones(SIZE)) for _ in range(5)]
        os._exit(len(refs))

    for _ in range(20):
        with pytest.raises(weft.WorkerCrashedError):
            weft.get(crash.remote(), timeout=60)


@pytest.mark.parametrize("end", ENDS[1:], ids=lambda end: end.__name__)
def test_a_result_whose_owner_dies_while_it_is_made_is_freed(small_store, gate, tmp_path, end):
    Keeper = keeper_class()
    maker, keeper = Keeper.remote(), Keeper.remote()
    pid = weft.get(keeper.put.remote())
    keeper.begin.remote(maker, str(tmp_path / "begun"), gate.path)
    wait_until((tmp_path / "begun").exists)
    end(keeper, pid)
    wait_until(lambda: has_ended(pid))
    gate.open()
    wait_until(lambda: weft.get(maker.written.remote()) == 0)  # which is called after the reply to nobody


def test_what_a_dead_owner_had_in_the_segment_of_a_living_writer_is_freed(small_store):
    """A result lies where the task ran, and belongs to the process that submitted it."""
    Keeper = keeper_class()
    maker = Keeper.remote()
    weft.get(maker.put.remote())  # its own, which must stay
    for end in ENDS * 15:
        keeper = Keeper.remote()
        end(keeper, weft.get(keeper.call.remote(maker)))
        del keeper
    # The maker reserves what it needs, and no more: of 60 results none is left beside the one it puts now.
    weft.get(maker.put.remote())
    big = weft.put(numpy.ones(2 * STORE // 3 // 8))
    assert weft.get(big).sum() == 2 * STORE // 3 // 8
    del maker, big


def test_a_late_receiver_never_sees_other_bytes(no_session, tmp_path, gate):
    """It is given an orphan that was freed meanwhile, in the segment of a writer that is stopped."""
    weft.init(num_cpus=2, object_store_memory=STORE)

    @weft.remote(num_cpus=0)
    class Party:
        def pid(self):
            return os.getpid()

        def make(self, fill):
            import numpy

            return numpy.full(800_000, fill, dtype=numpy.uint8)

        def call(self, writer):
            self.box, self.other = [writer.make.remote(1)], writer.make.remote(2)
            weft.wait([*self.box, self.other], num_returns=2)
            return self.box

        def written(self):
            return weft._core.stats()["store_bytes"]

        def keep(self, box):
            self.box = box

        def pass_on(self, receiver):
            receiver.take.remote(self.box[0])

        def wait_at(self, begun, gate):
            open(begun, "w").close()
            hold(gate)

        def take(self, array):
            self.array = array

        def seen(self):
            array = getattr(self, "array", None)
            return None if array is None else (int(array.min()), int(array.max()))

    writer, owner, borrower, receiver = parties = [Party.remote() for _ in range(4)]
    writers, owners, borrowers, _ = weft.get([party.pid.remote() for party in parties])
    weft.get(borrower.keep.remote(weft.get(owner.call.remote(writer))))
    receiver.wait_at.remote(str(tmp_path / "begun"), gate.path)
    wait_until((tmp_path / "begun").exists)
    weft.get(borrower.pass_on.remote(receiver))
    os.kill(owners, signal.SIGKILL)
    # What nobody has is freed, so the writer has said what it has.
    wait_until(lambda: weft.get(writer.written.remote()) < 1_000_000)
    os.kill(writers, signal.SIGSTOP)
    try:
        os.kill(borrowers, signal.SIGKILL)
        with pytest.raises(weft.ActorDiedError):  # so the daemon knows, and has freed what the borrower had
            weft.get(borrower.pid.remote())
        gate.open()
        weft.get(receiver.pid.remote())  # it has taken the array, or was told that there is none
    finally:
        os.kill(writers, signal.SIGCONT)
    later = [weft.get(writer.make.remote(7)) for _ in range(10)]
    assert weft.get(receiver.seen.remote()) in (None, (1, 1))
    del later


def test_results_that_a_dead_worker_never_replied_are_freed(small_store, tmp_path):
    """A caller that is stopped reads no replies. Its actor seals a result, cannot reply, and is killed there."""

    @weft.remote
    class Maker:
        @weft.method(num_returns=2)
        def make(self, path):
            with open(path, "a") as file:
                file.write("x")
            return numpy.ones(2_500), b"x" * 15_000  # one in the store, one in the reply, which fills the channel

        def pid(self):
            return os.getpid()

    @weft.remote
    class Caller:
        def call(self, maker, path):
            weft.get(maker.pid.remote())  # from here on there is a channel to it
            self.refs = [maker.make.remote(path) for _ in range(200)]
            os.kill(os.getpid(), signal.SIGSTOP)

        def drop(self):
            self.refs = None

        def pid(self):
            return os.getpid()

    for i in range(3):
        path = tmp_path / f"{i}"
        maker, caller = Maker.remote(), Caller.remote()
        maker_pid, caller_pid = weft.get([maker.pid.remote(), caller.pid.remote()])
        called = caller.call.remote(maker, str(path))
        wait_until(Unchanged(path), 60, "the maker does not wait for room in the channel")
        os.kill(maker_pid, signal.SIGKILL)
        wait_until(lambda pid=maker_pid: has_ended(pid))
        os.kill(caller_pid, signal.SIGCONT)
        weft.get(called, timeout=60)
        weft.get(caller.drop.remote(), timeout=60)
        nothing_is_left()


class Unchanged:
    """A file that grows no more: true once it has had the same size for a moment."""

    def __init__(self, path):
        self.path, self.size, self.since = path, 0, 0.0

    def __call__(self) -> bool:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self.size:
            self.size, self.since = size, time.monotonic()
        return size > 0 and time.monotonic() - self.since > 0.3


def has_ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_results_of_a_dead_worker_stay_with_their_owner(small_store):
    @weft.remote
    def make(value):
        return os.getpid(), numpy.full(SIZE, value)

    refs = [make.remote(float(i)) for i in range(10)]
    for pid, _ in weft.get(refs):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait_until(lambda: left_behind() > 0)
    for i, (_, array) in enumerate(weft.get(refs)):
        assert (array == float(i)).all()
    del array, refs
    gc.collect()


@pytest.mark.parametrize("end", ENDS[1:], ids=lambda end: end.__name__)
def test_a_view_keeps_the_bytes(small_store, end):
    views = []
    for i in range(8):
        keeper = keeper_class().remote()
        ref = weft.get(keeper.lend.remote(float(i)))[0]
        views.append(weft.get(ref))
        end(keeper, weft.get(keeper.put.remote()))
        del keeper, ref
    churn()
    assert [float(view[0]) for view in views] == [float(i) for i in range(8)]
    assert all((view == view[0]).all() for view in views)
    wait_until(lambda: left_behind() >= 8 * 800_000)  # the last one may just be ending
    del views[4:]
    gc.collect()
    wait_until(lambda: left_behind() < 5 * 800_000)
    churn()
    assert all((view == float(i)).all() for i, view in enumerate(views))
    views.clear()


def churn():
    """Fills the store with other things, again and again."""
    for _ in range(20):
        array = weft.get(weft.put(numpy.full(SIZE, -1.0)))
        assert (array == -1.0).all()


def test_a_reference_keeps_the_bytes(small_store):
    """A process that has read it once can do so again, and hand it on."""
    keeper = keeper_class().remote()
    ref = weft.get(keeper.lend.remote(5.0))[0]
    assert weft.get(ref)[0] == 5.0
    pid = weft.get(keeper.put.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(weft.ActorDiedError):
        weft.get(keeper.put.remote(), timeout=60)
    churn()
    assert left_behind() >= 800_000
    assert (weft.get(ref) == 5.0).all()

    @weft.remote
    class Borrower:
        def take(self, array):
            self.array = array

        def total(self):
            return float(self.array.sum())

    borrower = Borrower.remote()  # that has never heard of the keeper
    weft.get(borrower.take.remote(ref), timeout=60)
    del ref
    gc.collect()
    churn()
    assert weft.get(borrower.total.remote(), timeout=60) == 5.0 * SIZE
    assert left_behind() >= 800_000
    del borrower


def test_a_borrower_of_a_dead_owner_gets_an_error(small_store):
    keeper = keeper_class().remote()
    ref = weft.get(keeper.lend.remote(1.0))[0]
    os.kill(weft.get(keeper.put.remote()), signal.SIGKILL)
    with pytest.raises(weft.ActorDiedError):
        weft.get(keeper.put.remote(), timeout=60)
    with pytest.raises(weft.OwnerDiedError):
        weft.get(ref, timeout=60)


def test_the_arguments_of_a_running_task_stay_when_their_owner_dies(small_store, gate):
    """The task has them by their place; its worker does not know the reference otherwise."""
    keeper = keeper_class().remote()
    ref = weft.get(keeper.lend.remote(7.0))[0]
    weft.get(ref)

    @weft.remote
    def use(array, path):
        hold(path)
        return float(array.sum())

    result = use.remote(ref, gate.path)
    del ref
    os.kill(weft.get(keeper.put.remote()), signal.SIGKILL)
    with pytest.raises(weft.ActorDiedError):
        weft.get(keeper.put.remote(), timeout=60)
    churn()
    gate.open()
    assert weft.get(result, timeout=60) == 7.0 * SIZE
