"""A session whose processes talk over stream sockets, as they do between nodes: what differs there is how messages
travel, which thread reads them, how tasks are taken back, and in which order things arrive."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import weft
from helpers import hold, wait_until
from weft import _core


@pytest.fixture(params=["1", "tcp"], ids=["unix", "tcp"], scope="module")
def streams(request):
    weft.shutdown()
    os.environ["WEFT_STREAM_CHANNELS"] = request.param
    try:
        weft.init(num_cpus=4)
    finally:
        del os.environ["WEFT_STREAM_CHANNELS"]
    yield
    weft.shutdown()


pytestmark = pytest.mark.usefixtures("streams")


@weft.remote
def add(a, b):
    return a + b


@weft.remote
class Keeper:
    def __init__(self):
        self.kept = []
        self.calls = 0

    def keep(self, refs):
        self.kept = list(refs)

    def give(self):
        return [self.kept.pop()]

    def count(self):
        self.calls += 1
        return self.calls

    def pid(self):
        return os.getpid()


def thread_names(pid):
    names = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as file:
            names.add(file.read().strip())
    return names


def test_streams_are_used():
    assert weft.get(add.remote(1, 2)) == 3
    assert "weft-streams" in thread_names(os.getpid())


def test_many_tasks():
    assert sum(weft.get([add.remote(i, 1) for i in range(10_000)])) == sum(range(1, 10_001))


def test_calls_keep_their_order():
    keeper = Keeper.remote()
    assert weft.get([keeper.count.remote() for _ in range(10_000)]) == list(range(1, 10_001))


def test_one_after_the_other():
    keeper = Keeper.remote()
    for i in range(500):
        assert weft.get(keeper.count.remote()) == i + 1


def test_large_arguments_and_results():
    # Inline, in the store, and more at once than the window of a stream holds.
    for size in (15_000, 200_000, 3_000_000):
        value = weft.put(bytes(size))
        assert weft.get([add.remote(value, b"x") for _ in range(20)]) == [bytes(size) + b"x"] * 20
    small = bytes(12_000)
    assert weft.get([add.remote(small, b"") for _ in range(500)]) == [small] * 500


def test_a_chain_of_results():
    ref = add.remote(0, 0)
    for _ in range(200):
        ref = add.remote(ref, 1)
    assert weft.get(ref) == 200


def test_nested_tasks():
    @weft.remote
    def outer(n):
        return sum(weft.get([add.remote(i, n) for i in range(20)]))

    assert weft.get([outer.remote(n) for n in range(20)]) == [190 + 20 * n for n in range(20)]


def test_queued_tasks_move_to_a_worker_that_becomes_free(gate):
    """Those behind a long task are asked back, and the answer comes later."""

    @weft.remote
    def quick(i):
        return i

    @weft.remote
    def slow(path):
        hold(path)

    assert weft.get([quick.remote(i) for i in range(50)]) == list(range(50))
    held = slow.remote(gate.path)
    assert weft.get([quick.remote(i) for i in range(2_000)], timeout=50) == list(range(2_000))
    gate.open()
    weft.get(held)


def test_a_reply_is_not_held_up_by_the_next_task(gate):
    """Replies are gathered, but not for as long as the next task runs."""

    @weft.remote
    class Serial:
        def quick(self):
            return 1

        def slow(self, path):
            hold(path)

    serial = Serial.remote()
    weft.get(serial.quick.remote())
    quick = [serial.quick.remote() for _ in range(10)]
    slow = serial.slow.remote(gate.path)
    assert weft.get(quick, timeout=50) == [1] * 10
    assert not weft.wait([slow], timeout=0)[0]
    gate.open()
    weft.get(slow)


def test_a_killed_worker_costs_a_retry():
    @weft.remote(max_retries=2)
    def dies_once(path):
        if not os.path.exists(path):
            with open(path, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    @weft.remote(max_retries=0)
    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    path = f"/tmp/weft-test-streams-{os.getpid()}-{time.monotonic_ns()}"
    try:
        others = [add.remote(i, 0) for i in range(200)]
        assert weft.get(dies_once.remote(path), timeout=50) == "survived"
        assert weft.get(others, timeout=50) == list(range(200))
    finally:
        os.unlink(path)
    with pytest.raises(weft.exceptions.WorkerCrashedError):
        weft.get(dies.remote(), timeout=50)
    assert weft.get(add.remote(1, 1), timeout=50) == 2


def test_what_a_dying_worker_has_replied_counts():
    """Replies are gathered; those of calls that would not be run again only until something new begins."""

    @weft.remote
    class Dying:
        def value(self):
            return "said"

        def die(self):
            os.kill(os.getpid(), signal.SIGKILL)

    dying = [Dying.remote() for _ in range(4)]
    said = [actor.value.remote() for actor in dying for _ in range(10)]
    for ref in [actor.die.remote() for actor in dying]:
        with pytest.raises(weft.exceptions.ActorDiedError):
            weft.get(ref, timeout=50)
    assert weft.get(said, timeout=50) == ["said"] * 40


def test_an_actor_restarts():
    @weft.remote(max_restarts=1, max_task_retries=1)
    class Restarting:
        def pid(self):
            return os.getpid()

        def ping(self):
            return "pong"

    actor = Restarting.remote()
    pid = weft.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    assert weft.get([actor.ping.remote() for _ in range(100)], timeout=50) == ["pong"] * 100
    assert weft.get(actor.pid.remote(), timeout=50) != pid


def test_exit_actor_delivers_its_reply():
    @weft.remote
    class Leaving:
        def value(self, size):
            return bytes(size)

        def leave(self):
            weft.exit_actor()

    for _ in range(5):
        actor = Leaving.remote()
        values = [actor.value.remote(10_000) for _ in range(50)]
        left = actor.leave.remote()
        with pytest.raises(weft.exceptions.ActorDiedError):
            weft.get(left, timeout=50)
        assert weft.get(values, timeout=50) == [bytes(10_000)] * 50


def test_cancel(gate):
    @weft.remote
    def held(path):
        hold(path)

    running = held.remote(gate.path)
    queued = [held.remote(gate.path) for _ in range(20)]
    for ref in [*reversed(queued), running]:
        weft.cancel(ref)
    for ref in [running, *queued]:
        with pytest.raises(weft.exceptions.TaskCancelledError):
            weft.get(ref, timeout=50)


def test_a_returned_reference_is_not_freed_by_its_former_holder():
    """The actor returns our object and lets go of it at once. That it has let go reaches us by another way than the
    reply, and sooner if the reply is gathered; it must wait for the reply all the same."""
    keeper = Keeper.remote()
    for _ in range(20):
        numbers = [weft.put([i]) for i in range(200)]
        weft.get(keeper.keep.remote(numbers))
        del numbers
        answers = [keeper.give.remote() for _ in range(200)]
        for i, answer in zip(reversed(range(200)), answers):
            (ref,) = weft.get(answer, timeout=50)
            assert weft.get(ref, timeout=50) == [i]
            del ref
        del answers, answer
    wait_until(lambda: _core.stats()["live_objects"] < 50)


def test_references_are_handed_around():
    @weft.remote
    def wrap(box):
        return [box[0], weft.put(weft.get(box[0]) + 1)]

    @weft.remote
    def unwrap(box):
        return weft.get(weft.get(box)[1]) if isinstance(box, weft.ObjectRef) else weft.get(box[1])

    for _ in range(50):
        boxes = [wrap.remote([weft.put(i)]) for i in range(4)]
        assert weft.get([unwrap.remote(box) for box in boxes], timeout=50) == [1, 2, 3, 4]


def test_threads_wait_beside_each_other():
    keeper = Keeper.remote()
    failures = []

    def work():
        try:
            for i in range(100):
                assert weft.get(add.remote(i, 1), timeout=50) == i + 1
                weft.get(keeper.count.remote(), timeout=50)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert weft.get(keeper.count.remote()) == 401


def test_concurrent_actors_reply_in_any_order(gate):
    @weft.remote(max_concurrency=4)
    class Concurrent:
        def held(self, path):
            hold(path)
            return "held"

        def quick(self, i):
            return i

    actor = Concurrent.remote()
    held = actor.held.remote(gate.path)
    assert weft.get([actor.quick.remote(i) for i in range(300)], timeout=50) == list(range(300))
    gate.open()
    assert weft.get(held, timeout=50) == "held"
