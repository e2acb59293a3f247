"""Where the code runs, and what the session has."""

from __future__ import annotations

import os

import pytest
import weft
from helpers import hold, note, notes, wait_until


def test_in_the_driver(session):
    context = weft.get_runtime_context()
    assert len(context.get_job_id()) > 0
    assert len(context.get_node_id()) > 0
    assert len(context.get_worker_id()) == 16
    assert context.get_task_id() is None
    assert context.get_task_name() is None
    assert context.get_actor_id() is None
    assert context.get_actor_name() is None
    assert context.get_assigned_resources() == {}
    assert context.get_accelerator_ids() == {"GPU": []}
    assert context.is_worker is False
    assert context.namespace == ""
    assert weft.get_gpu_ids() == []
    with pytest.raises(RuntimeError, match="outside of an actor"):
        context.current_actor  # noqa: B018
    with pytest.raises(RuntimeError, match="outside of an actor"):
        context.was_current_actor_reconstructed  # noqa: B018
    assert "job_id" in context.get()
    assert "job_id" in repr(context)


def test_in_a_task(session):
    @weft.remote
    def describe():
        context = weft.get_runtime_context()
        return {
            **context.get(),
            "attempt": context.get_task_attempt(),
            "resources": context.get_assigned_resources(),
            "actor": context.get_actor_id(),
            "is_worker": context.is_worker,
        }

    weft.get([describe.remote() for _ in range(5)])
    ref = describe.remote()
    described = weft.get(ref)
    context = weft.get_runtime_context()
    assert described["job_id"] == context.get_job_id()
    assert described["node_id"] == context.get_node_id()
    assert described["worker_id"] != context.get_worker_id()
    assert described["task_id"] == ref.hex()
    assert described["task_name"].endswith("describe")
    assert (described["attempt"], described["resources"]) == (0, {"CPU": 1.0})
    assert (described["actor"], described["is_worker"]) == (None, True)
    assert weft.get(describe.options(name="special").remote())["task_name"] == "special"


def test_attempts(session, tmp_path):
    path = str(tmp_path / "notes")

    @weft.remote(max_retries=2)
    def task():
        note(path, str(weft.get_runtime_context().get_task_attempt()))
        if len(notes(path)) < 3:
            os._exit(1)

    weft.get(task.remote(), timeout=60)
    assert notes(path) == ["0", "1", "2"]


def test_in_an_actor(session):
    @weft.remote
    class Actor:
        def __init__(self):
            self.in_constructor = weft.get_runtime_context().get_actor_id()

        def describe(self):
            context = weft.get_runtime_context()
            return {
                "constructor": self.in_constructor,
                "id": context.get_actor_id(),
                "name": context.get_actor_name(),
                "task": context.get_task_id(),
                "task_name": context.get_task_name(),
                "handle": context.current_actor,
                "restarted": context.was_current_actor_reconstructed,
                "resources": context.get_assigned_resources(),
            }

    actor = Actor.options(name="somebody").remote()
    ref = actor.describe.remote()
    described = weft.get(ref)
    assert described["id"] == described["constructor"] == actor._actor_id
    assert described["name"] == "somebody"
    assert described["task"] == ref.hex()
    assert described["task_name"] == "Actor.describe"
    assert described["handle"] == actor
    assert described["restarted"] is False
    assert described["resources"] == {}
    weft.kill(actor)
    other = Actor.options(num_cpus=0.5, resources=None).remote()
    described = weft.get(other.describe.remote())
    assert described["name"] == ""
    assert described["resources"] == {"CPU": 0.5}
    assert weft.get(described["handle"].describe.remote())["id"] == other._actor_id


def test_resources_of_the_session(no_session, gate):
    weft.init(num_cpus=2, num_gpus=1, resources={"disk": 3})
    total = weft.cluster_resources()
    assert (total["CPU"], total["GPU"], total["disk"]) == (2.0, 1.0, 3.0)
    assert weft.nodes()[0]["Alive"] is True
    assert weft.nodes()[0]["Resources"]["CPU"] == 2.0
    assert weft.nodes()[0]["NodeID"] == weft.get_runtime_context().get_node_id()

    @weft.remote(num_cpus=1.5, resources={"disk": 3})
    def use(path):
        hold(path)

    ref = use.remote(gate.path)
    wait_until(lambda: weft.available_resources().get("CPU") == 0.5, what=f"{weft.available_resources()}")
    assert "disk" not in weft.available_resources()
    gate.open()
    weft.get(ref)
    wait_until(lambda: weft.available_resources().get("disk") == 3.0, what=f"{weft.available_resources()}")


def test_actors_hold_what_they_asked_for(no_session):
    weft.init(num_cpus=2, num_gpus=2)

    @weft.remote
    class Actor:
        def gpus(self):
            return weft.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    free = Actor.remote()
    weft.get(free.gpus.remote())
    wait_until(lambda: weft.available_resources().get("CPU") == 2.0)
    holder = Actor.options(num_cpus=1, num_gpus=1).remote()
    ids, visible = weft.get(holder.gpus.remote())
    assert len(ids) == 1
    assert visible == str(ids[0])
    other = Actor.options(num_gpus=1).remote()
    assert {ids[0], weft.get(other.gpus.remote())[0][0]} == {0, 1}
    assert weft.available_resources().get("CPU") == 1.0
    assert "GPU" not in weft.available_resources()
    del holder
    wait_until(lambda: weft.available_resources().get("GPU") == 1.0)


def test_gpus_of_tasks(no_session, gate):
    weft.init(num_cpus=4, num_gpus=2)

    @weft.remote(num_gpus=1)
    def task(path):
        hold(path)
        return weft.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    refs = [task.remote(gate.path) for _ in range(2)]
    wait_until(lambda: "GPU" not in weft.available_resources(), 30)
    gate.open()
    results = weft.get(refs)
    assert sorted(ids for ids, _ in results) == [[0], [1]]
    assert all(visible == str(ids[0]) for ids, visible in results)

    @weft.remote
    def without():
        return weft.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    ids, visible = weft.get(without.remote())
    assert ids == []


def test_fractions_of_a_gpu(no_session):
    weft.init(num_cpus=4, num_gpus=1)

    @weft.remote(num_gpus=0.5, num_cpus=0)
    class Half:
        def gpus(self):
            return weft.get_gpu_ids()

    halves = [Half.remote() for _ in range(2)]
    assert weft.get([half.gpus.remote() for half in halves], timeout=30) == [[0], [0]]
