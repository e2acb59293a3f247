"""weft.util.ParameterServer: shards, steps of all workers and gradients as they come, memory, deaths."""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np
import pytest
import weft
from helpers import run_driver, wait_until
from weft.util import ParameterServer

pytestmark = pytest.mark.usefixtures("session")

TRUTH = {"w": np.arange(6.0).reshape(2, 3), "b": np.array([1.0, -1.0], "float32"), "s": np.array(4.0)}
ZEROS = {name: np.zeros_like(array) for name, array in TRUTH.items()}


def pull_of(weights):
    """The gradient of half the squared distance to the truth."""
    return {name: weights[name] - TRUTH[name] for name in weights}


@weft.remote(num_cpus=0)
def train(server, steps, worker=None):
    for _ in range(steps):
        server.push(pull_of(server.pull()), worker=worker)


def place(array):
    """The file behind an array's memory and the place in it, which are the same in all processes."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, _, offset, _, inode = line.split()[:5]
            begin, end = (int(text, 16) for text in addresses.split("-"))
            if begin <= address < end:
                return int(inode), int(offset, 16) + address - begin
    raise AssertionError("the array lies in no mapping")


def expect_truth(weights):
    for name, array in TRUTH.items():
        np.testing.assert_allclose(weights[name], array, atol=1e-3)


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_gradients_as_they_come(shards):
    server = ParameterServer(ZEROS, shards=shards, rate=0.1)
    assert len(server.shards) == min(shards, 3)
    assert sorted(name for names in server.shards for name in names) == sorted(TRUTH)
    weft.get([train.remote(server, 60) for _ in range(3)])
    weights = server.pull()
    expect_truth(weights)
    assert list(weights) == list(TRUTH)
    assert [weights[name].dtype for name in TRUTH] == [TRUTH[name].dtype for name in TRUTH]


@pytest.mark.parametrize("shards", [1, 2])
def test_steps_apply_the_mean_of_all_workers(shards):
    server = ParameterServer(ZEROS, shards=shards, workers=3, rate=0.25)
    weft.get([train.remote(server, 7, worker) for worker in range(3)])
    for name, array in server.pull().items():  # all workers see the same weights, so it is plain descent
        np.testing.assert_allclose(array, TRUTH[name] * (1 - 0.75**7), rtol=1e-6)


def test_a_step_waits_for_every_worker():
    server = ParameterServer({"x": np.zeros(3)}, workers=2, rate=1.0)
    server.pull()
    with pytest.raises(weft.GetTimeoutError, match=r"no gradients from worker 1; start what has ended again"):
        server.push({"x": np.full(3, 2.0)}, worker=0, timeout=0.05)
    assert list(server.pull()["x"]) == [0, 0, 0]
    server.push({"x": np.full(3, 4.0)}, worker=1, timeout=30)
    assert list(server.pull()["x"]) == [-3, -3, -3]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_long_step_is_told_of_once(shards, tmp_path):
    """Nobody may wait in silence for a worker that has died: one line names it, whatever process waits."""
    driver = run_driver(
        f"""
        import os, signal, time
        import numpy as np, weft
        from weft.util import ParameterServer

        @weft.remote(num_cpus=0, max_retries=0)
        def push(server, worker, pid_file=None):
            server.pull()
            if pid_file is not None:
                with open(pid_file, "w") as file:
                    file.write(str(os.getpid()))
                time.sleep(600)
            server.push({{"x": np.ones(2), "y": np.ones(2)}}, worker=worker)

        weft.init(num_cpus=1)
        server = ParameterServer({{"x": np.zeros(2), "y": np.zeros(2)}}, shards={shards}, workers=4, rate=1.0)
        dies = push.remote(server, 3, {str(tmp_path / "pid")!r})
        waiting = [push.remote(server, worker) for worker in range(2)]
        deadline = time.monotonic() + 30
        while not (os.path.exists({str(tmp_path / "pid")!r}) and open({str(tmp_path / "pid")!r}).read()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(int(open({str(tmp_path / "pid")!r}).read()), signal.SIGKILL)
        assert weft.wait(waiting, num_returns=2, timeout=2)[0] == []
        waiting.append(push.remote(server, 2))
        assert weft.wait(waiting, num_returns=3, timeout=1)[0] == []
        weft.get([push.remote(server, 3), *waiting], timeout=30)
        assert list(server.pull()["x"]) == [-1, -1]
        """,
        env={"WEFT_LONG_WAIT_SECONDS": "0.5"},
    )
    told = [line for line in driver.stderr.splitlines() if "this step of a ParameterServer waits" in line]
    assert 1 <= len(told) <= shards, driver.stderr  # of two workers that ask at once, each may tell of one shard
    assert re.search(r"gradients from workers [12, ]*3\. What has ended must be started again, with the same", told[0])


def test_a_timeout_of_an_asynchronous_server():
    def slow(name, weights, gradient):
        time.sleep(0.5)
        weights -= gradient

    server = ParameterServer({"x": np.zeros(1)}, update=slow)
    server.pull()
    with pytest.raises(weft.GetTimeoutError, match="not applied after 0.05 s; they count all the same"):
        server.push({"x": np.ones(1)}, timeout=0.05)
    assert server.pull()["x"] == -1


def test_a_worker_counts_once_per_step():
    """A worker that was started in place of a dead one repeats its push; the first one stands."""
    server = ParameterServer({"x": np.zeros(1)}, workers=2, rate=1.0)
    successor = weft.get(weft.put(server))
    for copy in (server, successor):
        copy.pull()
        with pytest.raises(weft.GetTimeoutError):
            copy.push({"x": np.array([2.0])}, worker=0, timeout=0.05)
    successor.push({"x": np.array([2.0])}, worker=1, timeout=30)
    assert server.pull()["x"] == -2


def test_a_worker_that_died_between_two_shards_is_made_up_for():
    arrays = {"a": np.zeros(2), "b": np.zeros(2)}
    server = ParameterServer(arrays, shards=2, workers=2, rate=1.0)
    ones = {"a": np.ones(2), "b": np.ones(2)}
    server.pull()
    # Worker 1 reaches the first shard and dies; worker 0 reaches both, and waits for the second.
    block = np.frombuffer(np.ones(2).tobytes() + bytes(48), np.uint8)
    first = server._shards[0].push.remote(1, 0, block)
    with pytest.raises(weft.GetTimeoutError, match="worker 1"):
        server.push(ones, worker=0, timeout=0.5)
    weft.get(first, timeout=30)
    successor = weft.get(weft.put(server))
    assert sorted(float(array[0]) for array in successor.pull().values()) == [-1, 0]
    successor.push(ones, worker=1, timeout=30)
    assert [list(array) for array in successor.pull().values()] == [[-1, -1], [-1, -1]]
    assert successor._versions == [1, 1]


def test_all_who_pull_a_version_look_at_the_same_memory():
    server = ParameterServer({"w": np.zeros(100_000)}, rate=1.0)

    @weft.remote(num_cpus=0)
    def where(server):
        return place(server.pull()["w"])

    weights = server.pull()["w"]
    assert set(weft.get([where.remote(server) for _ in range(3)])) == {place(weights)}
    assert not weights.flags.writeable
    server.push({"w": np.ones(100_000)})
    assert weights[7] == 0 and server.pull()["w"][7] == -1  # a version does not change under its readers
    assert weft.get(where.remote(server)) != place(weights)


def test_gradients_written_in_place_are_sent_without_a_copy():
    server = ParameterServer(ZEROS, shards=2, rate=1.0)
    server.pull()
    gradients = server.gradients()
    gradients["w"][...] = TRUTH["w"]
    gradients["b"][...] = TRUTH["b"]
    gradients["s"] = TRUTH["s"]  # in the place of the array: copied
    before = weft._core.stats()["store_bytes"]
    server.push(gradients)
    assert weft._core.stats()["store_bytes"] <= before
    for name, array in server.pull().items():
        np.testing.assert_allclose(array, -TRUTH[name])
    with pytest.raises(ValueError, match="read-only"):
        gradients["w"][...] = 0


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 131_072, 300_001])
def test_every_number_of_every_worker_counts(workers, size):
    """Arrays smaller and larger than the pieces in which a step is made, with and without an update of one's own."""

    def descend(name, weights, gradient):
        weights -= 0.5 * gradient

    for update in (None, descend):
        server = ParameterServer({"x": np.zeros(size)}, workers=workers, rate=0.5, update=update)
        expected = np.zeros(size)
        for step in range(3):
            parts = [np.random.default_rng([step, worker]).normal(size=size) for worker in range(workers)]
            weft.get([push_x.remote(server, worker, part) for worker, part in enumerate(parts)], timeout=60)
            expected -= 0.5 * np.mean(parts, axis=0)
        np.testing.assert_allclose(server.pull()["x"], expected, atol=1e-12)


@weft.remote(num_cpus=0)
def push_x(server, worker, gradient):
    server.pull()
    server.push({"x": gradient}, worker=worker)


def test_versions_that_nobody_reads_are_freed():
    run_driver(
        """
        import numpy as np, weft
        from weft.util import ParameterServer

        weft.init(num_cpus=1, object_store_memory=200_000_000)
        server = ParameterServer({"w": np.zeros(1_000_000)}, rate=1.0)
        for _ in range(60):  # 8 MB of weights and 8 MB of gradients each
            server.push({name: np.ones_like(array) for name, array in server.pull().items()})
        assert server.pull()["w"][0] == -60
        """
    )


def test_an_update_of_ones_own_with_state():
    class Momentum:
        def __init__(self):
            self.speed = {}

        def __call__(self, name, weights, gradient):
            self.speed[name] = 0.5 * self.speed.get(name, 0.0) + gradient
            weights -= self.speed[name]

    server = ParameterServer({"x": np.zeros(2)}, update=Momentum())
    for _ in range(3):
        server.pull()
        server.push({"x": np.array([1.0, 2.0])})
    np.testing.assert_allclose(server.pull()["x"], [-4.25, -8.5])


def test_an_update_that_raises_reaches_every_worker_of_the_step():
    def update(name, weights, gradient):
        raise KeyError(name)

    server = ParameterServer({"x": np.zeros(2)}, update=update, workers=2)
    pushed = [train_once.remote(server, worker) for worker in range(2)]
    for ref in pushed:
        with pytest.raises(KeyError, match="x"):
            weft.get(ref, timeout=30)


@weft.remote(num_cpus=0)
def train_once(server, worker):
    server.pull()
    server.push({"x": np.ones(2)}, worker=worker)


@pytest.mark.parametrize("killed", [1, 2])
def test_a_dead_shard_is_an_error_and_no_wait(killed):
    """Also for a push that waits on the other shard, for a worker that can no longer push."""
    server = ParameterServer(ZEROS, shards=2, workers=2)
    server.pull()
    waiting = train.remote(server, 1, 0)
    wait_until(lambda: weft.get([shard.missing.remote(0) for shard in server._shards]) == [[1], [1]])
    for actor in weft.state.list_actors():
        if any(actor["actor_id"] in repr(shard) for shard in server._shards[:killed]):
            os.kill(actor["pid"], signal.SIGKILL)
    with pytest.raises(weft.ActorDiedError, match="_ParameterShard.*SIGKILL"):
        weft.get(waiting, timeout=30)
    with pytest.raises(weft.ActorDiedError, match="_ParameterShard"):
        server.pull()


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: ParameterServer(np.zeros(3)), TypeError, "dict of arrays by name.*array_split"),
        (lambda: ParameterServer({}), ValueError, "no parameters"),
        (lambda: ParameterServer({"i": np.arange(3)}), TypeError, "'i' has the dtype int64"),
        (lambda: ParameterServer({3: np.zeros(3)}), TypeError, "name of a parameter is a str, not 3"),
        (lambda: ParameterServer(ZEROS, shards=0), ValueError, "shards must be at least 1, but is 0"),
        (lambda: ParameterServer(ZEROS, workers=0), ValueError, "workers must be at least 1"),
        (lambda: ParameterServer(ZEROS, shards="2"), TypeError, "shards must be an int, not '2'"),
        (lambda: ParameterServer(ZEROS, rate="fast"), TypeError, "rate must be a number, not 'fast'"),
        (lambda: ParameterServer(ZEROS, update=3), TypeError, "update must be a function"),
    ],
)
def test_wrong_parameters_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_wrong_gradients_are_refused_and_change_nothing():
    server = ParameterServer(ZEROS, shards=2)
    with pytest.raises(RuntimeError, match="push before pull"):
        server.push(TRUTH)
    server.pull()
    for gradients, words in [
        ({"w": TRUTH["w"], "b": TRUTH["b"]}, "the gradients lack s; they must have the names that pull gives"),
        ({**TRUTH, "c": 1}, "the gradients have unknown c"),
        ({**TRUTH, "b": np.zeros(3)}, r"the gradient 'b' has the shape \(3,\), but the weights have \(2,\)"),
        ({**TRUTH, "s": 4.0}, r"the gradient 's' has the shape None"),
    ]:
        with pytest.raises(ValueError, match=words):
            server.push(gradients)
    with pytest.raises(TypeError, match="gradients must be a dict of arrays by name, not list"):
        server.push([1, 2])
    with pytest.raises(ValueError, match="worker= is for synchronous servers"):
        server.push(TRUTH, worker=0)
    assert all((array == 0).all() for array in server.pull().values())
    steps = ParameterServer(ZEROS, workers=2)
    steps.pull()
    with pytest.raises(TypeError, match=r"push\(gradients, worker=0\), not None"):
        steps.push(TRUTH)
    with pytest.raises(ValueError, match="the workers 0 to 1, not 2"):
        steps.push(TRUTH, worker=2)
