"""weft.state: lists of what is, and resources."""

from __future__ import annotations

import os

import pytest
import weft
from helpers import hold, wait_until
from weft import state


@weft.remote
def waits(path, *_):
    hold(path)
    return 1


@weft.remote
def quick():
    return os.getpid()


@pytest.fixture
def fresh(no_session):
    weft.init(num_cpus=2, resources={"tool": 1.5})
    return weft


def states(name):
    return sorted(row["state"] for row in state.list_tasks(filters=[("name", "=", name)], limit=10_000))


def test_tasks_in_every_state(fresh, gate):
    running = [waits.remote(gate.path) for _ in range(2)]
    wait_until(lambda: states("waits") == ["RUNNING"] * 2)
    later = waits.options(name="later").remote(gate.path, running[0])
    behind = waits.options(name="behind").remote(gate.path)
    wait_until(lambda: set(states("behind")) <= {"READY", "PUSHED"})
    row = state.list_tasks(filters=[("name", "=", "later")])[0]
    assert row["state"] in ("WAITING", "PUSHED")
    assert row["waits_for"] == [running[0].hex()]
    assert row["task_id"] == later.hex()
    gate.open()
    assert weft.get([*running, later, behind]) == [1] * 4
    wait_until(lambda: states("waits") == ["FINISHED"] * 2)
    row = state.list_tasks(filters=[("task_id", "=", running[0].hex())])[0]
    assert row["name"] == "waits"
    assert row["submitted_ns"] <= row["start_ns"] <= row["end_ns"]
    assert row["worker_pid"] in {worker["pid"] for worker in state.list_workers()}


def test_a_failed_task(fresh):
    @weft.remote
    def fails():
        raise ValueError("on purpose")

    with pytest.raises(ValueError):
        weft.get(fails.remote())
    wait_until(lambda: states("fails") == ["FAILED"])


def test_filters_and_limit(fresh):
    weft.get([quick.remote() for _ in range(10)])
    assert len(state.list_tasks(limit=3)) == 3
    assert state.list_tasks(filters=[("name", "!=", "quick")]) == []
    assert len(state.list_tasks(filters=[("name", "=", "QUICK"), ("attempt", "<=", 0)])) == 10
    for bad in ([("name", "~", "x")], [("name", "=")], ["name=x"]):
        with pytest.raises(ValueError, match="filter"):
            state.list_tasks(filters=bad)
    with pytest.raises(ValueError, match="nosuch.*task_id"):
        state.list_tasks(filters=[("nosuch", "=", 1)])
    for bad in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match="limit"):
            state.list_tasks(limit=bad)


def test_objects(fresh):
    small, large = weft.put(1), weft.put(b"x" * 5_000_000)
    pending = waits.remote("/nonexistent")
    rows = {row["object_id"]: row for row in state.list_objects(limit=10_000)}
    assert rows[small.hex()]["state"] == "INLINE"
    assert rows[large.hex()]["state"] == "STORED"
    assert rows[large.hex()]["size_bytes"] >= 5_000_000
    assert rows[large.hex()]["owner_pid"] == os.getpid()
    assert rows[pending.hex()]["state"] == "PENDING"
    assert state.list_objects()[0]["object_id"] == large.hex(), "the largest first"
    del large
    wait_until(lambda: not [row for row in state.list_objects() if row["size_bytes"] >= 5_000_000])


def test_workers_and_nodes(fresh):
    pid = weft.get(quick.remote())
    workers = {row["pid"]: row for row in state.list_workers()}
    assert workers[os.getpid()]["type"] == "driver"
    assert workers[pid]["type"] == "worker"
    assert workers[pid]["tasks_run"] >= 1
    (node,) = state.list_nodes()
    assert node["resources_total"] == {"CPU": 2.0, "tool": 1.5}
    assert node["driver_pid"] == os.getpid()
    assert node["object_store_bytes"] > 0


def test_a_dead_worker_stays_in_the_list(fresh):
    @weft.remote(max_retries=0)
    def die():
        os._exit(3)

    with pytest.raises(weft.WorkerCrashedError):
        weft.get(die.remote())
    dead = [row for row in state.list_workers() if row["state"] == "DEAD"]
    assert [row["death_cause"] for row in dead] == ["exited with code 3"]
    assert states("die") == ["DIED"]


def test_resources(fresh, gate):
    assert weft.cluster_resources() == {"CPU": 2.0, "tool": 1.5}
    ref = waits.options(num_cpus=1, resources={"tool": 0.25}).remote(gate.path)
    wait_until(lambda: weft.available_resources() == {"CPU": 1.0, "tool": 1.25})
    gate.open()
    weft.get(ref)
    wait_until(lambda: weft.available_resources() == {"CPU": 2.0, "tool": 1.5})


def test_summaries(fresh, gate):
    ref = waits.remote(gate.path)
    weft.get([quick.remote() for _ in range(5)])
    wait_until(lambda: states("waits") == ["RUNNING"])
    tasks = state.summarize_tasks()
    assert tasks["quick"]["states"] == {"FINISHED": 5}
    assert tasks["waits"]["states"] == {"RUNNING": 1}
    assert 0 < tasks["quick"]["longest_ms"] <= tasks["quick"]["total_ms"]
    whole = state.summary()
    assert whole["tasks"]["waits"]["states"] == {"RUNNING": 1}
    assert whole["workers"].get("BUSY", 0) >= 1
    assert state.summarize_objects()["PENDING"]["count"] == 1
    gate.open()
    weft.get(ref)


def test_many_objects_are_cut_and_not_refused(fresh):
    refs = [weft.put(i) for i in range(30_000)]
    assert len(state.list_objects(limit=100_000)) == 10_000
    assert len(refs) == 30_000


def test_without_a_session(no_session):
    with pytest.raises(weft.WeftError, match="init"):
        state.list_tasks()


@weft.remote
class Counter:
    def __init__(self):
        self.count = 0

    def increment(self):
        self.count += 1
        print("counting", flush=True)
        return self.count

    def wait(self, path):
        hold(path)


def actors():
    return {row["actor_id"]: row for row in state.list_actors(limit=10_000)}


def test_the_living_are_listed_before_the_dead(fresh):
    """Of thousands that have come and gone, the first hundred are shown."""
    counters = [Counter.options(num_cpus=0).remote() for _ in range(3)]
    weft.get([counter.increment.remote() for counter in counters])
    for counter in counters[:2]:
        weft.kill(counter)
    wait_until(lambda: [item["state"] for item in state.list_actors()] == ["ALIVE", "DEAD", "DEAD"])
    wait_until(lambda: [item["state"] for item in state.list_workers()].count("DEAD") == 2)
    states = [item["state"] for item in state.list_workers()]
    assert states == sorted(states, key=lambda name: name == "DEAD")


def test_actors_and_their_calls(fresh, gate):
    counter = Counter.options(name="named", namespace="here", num_cpus=0).remote()
    assert weft.get([counter.increment.remote() for _ in range(3)]) == [1, 2, 3]
    (row,) = actors().values()
    assert (row["class_name"], row["state"], row["name"], row["namespace"]) == ("Counter", "ALIVE", "named", "here")
    worker = next(item for item in state.list_workers() if item["pid"] == row["pid"])
    assert worker["actor_class"] == "Counter"
    names = {item["name"] for item in state.list_tasks(filters=[("state", "=", "FINISHED")])}
    assert any("increment" in name for name in names), names
    call = counter.wait.remote(gate.path)
    wait_until(lambda: any("wait" in item["name"] for item in state.list_tasks(filters=[("state", "=", "RUNNING")])))
    behind = counter.increment.remote()
    row = state.list_tasks(filters=[("task_id", "=", behind.hex())])[0]
    assert row["state"] in ("QUEUED", "PUSHED")
    gate.open()
    weft.get([call, behind])
    assert state.summarize_actors() == {"Counter": {"ALIVE": 1}}
    weft.kill(counter)
    wait_until(lambda: [item["state"] for item in actors().values()] == ["DEAD"])
    (row,) = actors().values()
    assert row["class_name"] == "Counter" and "kill" in row["death_cause"]
    events = weft.timeline()
    assert sum(event["ph"] == "X" and "increment" in event["name"] for event in events) == 4
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert any(title.startswith("Counter pid=") and "(dead)" in title for title in titles)
