"""Where tasks and actors run: "SPREAD", NodeAffinity, label_selector."""

from __future__ import annotations

import os
import pickle
import signal
import time

import numpy as np
import pytest
import weft
from helpers import hold, note, notes, wait_until
from weft.testing import Cluster
from weft.util.scheduling_strategies import NodeAffinity

SECONDS = 20


def here() -> str:
    return weft.get_runtime_context().get_node_id()


where = weft.remote(here)


@weft.remote
def where_slowly() -> str:
    time.sleep(0.05)
    return here()


@pytest.fixture(scope="module")
def cluster():
    weft.shutdown()
    with Cluster(head={"num_cpus": 2, "labels": {"zone": "eu", "disk": "hdd"}}) as made:
        made.add_node(num_cpus=2, labels={"zone": "us", "disk": "ssd"})
        made.add_node(num_cpus=2, labels={"zone": "us", "disk": "nvme", "gpu": "a100"})
        yield made
        weft.shutdown()


@pytest.fixture
def nodes(cluster) -> list:
    if not weft.is_initialized():
        weft.init(address=cluster.address)
    cluster.wait_for_nodes(3)
    return [node["NodeID"] for node in weft.nodes() if node["Alive"]]


def placed(**options) -> list:
    return weft.get([where.options(**options).remote() for _ in range(5)], timeout=SECONDS)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_affinity_to_each_node(nodes, number, soft):
    assert placed(scheduling_strategy=NodeAffinity(nodes[number], soft=soft)) == [nodes[number]] * 5


def test_affinity_from_a_task_on_another_node(nodes):
    @weft.remote
    def outer(inner_node):
        strategy = NodeAffinity(inner_node)
        return here(), weft.get(where.options(scheduling_strategy=strategy).remote())

    for outer_node in nodes:
        for inner_node in nodes:
            strategy = NodeAffinity(outer_node)
            found = weft.get(outer.options(scheduling_strategy=strategy).remote(inner_node), timeout=SECONDS)
            assert found == (outer_node, inner_node)


@weft.remote
def begin_and_hold(path: str, gate: str) -> None:
    note(path)
    hold(gate)


def test_affinity_waits_for_a_node_that_is_busy(nodes, gate, tmp_path):
    strategy = NodeAffinity(nodes[1])
    begun = str(tmp_path / "begun")
    busy = [begin_and_hold.options(scheduling_strategy=strategy).remote(begun, gate.path) for _ in range(2)]
    wait_until(lambda: len(notes(begun)) == 2, SECONDS, "the node is busy")
    waiting = where.options(scheduling_strategy=strategy).remote()
    assert placed() != []  # others run
    assert weft.wait([waiting], timeout=0.2)[0] == []
    gate.open()
    assert weft.get(waiting, timeout=SECONDS) == nodes[1]
    weft.get(busy, timeout=SECONDS)


def test_affinity_to_a_node_that_is_not_there(nodes):
    nobody = nodes[0][:16] + f"{99:016x}"
    with pytest.raises(weft.UnschedulableError, match="node 99 only, but it is not in the cluster"):
        weft.get(where.options(scheduling_strategy=NodeAffinity(nobody)).remote(), timeout=SECONDS)
    assert placed(scheduling_strategy=NodeAffinity(nobody, soft=True))[0] in nodes
    stranger = "0" * 31 + "1"
    with pytest.raises(weft.UnschedulableError, match=f"{stranger} only, and no such node belongs to this cluster"):
        weft.get(where.options(scheduling_strategy=NodeAffinity(stranger)).remote(), timeout=SECONDS)
    assert placed(scheduling_strategy=NodeAffinity(stranger, soft=True))[0] in nodes


def test_affinity_to_a_node_that_is_too_small(nodes):
    for node in nodes:
        strategy = NodeAffinity(node)
        with pytest.raises(weft.UnschedulableError, match="only 2 CPU in all, and 3 is asked for"):
            weft.get(where.options(num_cpus=3, scheduling_strategy=strategy).remote(), timeout=SECONDS)


def test_spread_uses_all_nodes(nodes):
    spread = where_slowly.options(scheduling_strategy="SPREAD")
    found = weft.get([spread.remote() for _ in range(30)], timeout=SECONDS)
    assert set(found) == set(nodes)


def test_default_stays_where_there_is_room(nodes):
    # Leases of earlier tests last a moment longer than their tasks.
    wait_until(lambda: weft.nodes()[0]["Available"].get("CPU") == 2, SECONDS, "the head is idle")
    for _ in range(5):
        assert weft.get(where.options(scheduling_strategy="DEFAULT").remote(), timeout=SECONDS) == nodes[0]


@pytest.mark.parametrize(
    "selector, allowed",
    [
        ({"zone": "eu"}, [0]),
        ({"zone": "us"}, [1, 2]),
        ({"zone": "us", "disk": "nvme"}, [2]),
        ({"zone": "!eu", "disk": "!nvme"}, [1]),
        ({"disk": "in(ssd, nvme)"}, [1, 2]),
        ({"disk": "!in(ssd,nvme)"}, [0]),
        ({"gpu": "*"}, [2]),
        ({"gpu": "!*", "zone": "us"}, [1]),
        ({}, [0, 1, 2]),
    ],
)
def test_labels(nodes, selector, allowed):
    assert set(placed(label_selector=selector)) <= {nodes[number] for number in allowed}


@weft.remote
def large() -> np.ndarray:
    return np.ones(4 << 20, dtype=np.uint8)


@weft.remote
def where_with(*values) -> str:
    assert all(value[-1] == 1 for value in values)
    return here()


def large_on(node: str):
    value = large.options(scheduling_strategy=NodeAffinity(node)).remote()
    assert weft.wait([value], timeout=SECONDS, fetch_local=False)[0] == [value]
    all_cpus = weft.cluster_resources()["CPU"]
    wait_until(lambda: weft.available_resources().get("CPU") == all_cpus, SECONDS, "leases are returned")
    return value


@pytest.mark.parametrize("number", [0, 1, 2])
def test_tasks_run_where_their_arguments_are(nodes, number):
    assert weft.get(where_with.remote(large_on(nodes[number])), timeout=SECONDS) == nodes[number]


def test_tasks_run_where_most_bytes_are(nodes):
    values = [large_on(nodes[number]) for number in (1, 2, 2)]
    assert weft.get(where_with.remote(*values), timeout=SECONDS) == nodes[2]


def test_who_says_where_is_not_contradicted_by_arguments(nodes):
    value = large_on(nodes[1])
    there = where_with.options(scheduling_strategy=NodeAffinity(nodes[2]))
    assert weft.get(there.remote(value), timeout=SECONDS) == nodes[2]
    assert weft.get(where_with.options(label_selector={"zone": "eu"}).remote(value), timeout=SECONDS) == nodes[0]


def test_where_the_arguments_are_there_may_be_no_room(nodes, gate, tmp_path):
    value = large_on(nodes[1])
    begun = str(tmp_path / "begun")
    busy = [
        begin_and_hold.options(scheduling_strategy=NodeAffinity(nodes[1])).remote(begun, gate.path) for _ in range(2)
    ]
    wait_until(lambda: len(notes(begun)) == 2, SECONDS, "the node is busy")
    assert weft.get(where_with.remote(value), timeout=SECONDS) != nodes[1]
    gate.open()
    weft.get(busy, timeout=SECONDS)


def test_labels_and_strategies_together(nodes):
    spread = where_slowly.options(scheduling_strategy="SPREAD", label_selector={"zone": "us"})
    assert set(weft.get([spread.remote() for _ in range(20)], timeout=SECONDS)) == set(nodes[1:])
    impossible = where.options(scheduling_strategy=NodeAffinity(nodes[0]), label_selector={"zone": "us"})
    with pytest.raises(weft.UnschedulableError, match="its labels are not zone=us"):
        weft.get(impossible.remote(), timeout=SECONDS)


def test_labels_that_no_node_has_wait_for_one(cluster, nodes):
    waiting = where.options(label_selector={"zone": "mars"}).remote()
    assert weft.wait([waiting], timeout=0.3)[0] == []
    with Cluster() as _:  # another cluster's node does not count
        assert weft.wait([waiting], timeout=0.1)[0] == []
    added = cluster.add_node(num_cpus=1, labels={"zone": "mars"})
    assert weft.get(waiting, timeout=SECONDS) == weft.nodes()[-1]["NodeID"]
    cluster.remove_node(added)
    cluster.wait_for_nodes(3)


def test_affinity_to_a_node_that_dies(cluster, nodes, gate, tmp_path):
    added = cluster.add_node(num_cpus=1)
    node = weft.nodes()[-1]["NodeID"]
    hard, soft = NodeAffinity(node), NodeAffinity(node, soft=True)
    begun = str(tmp_path / "begun")
    held = begin_and_hold.options(scheduling_strategy=hard, max_retries=0).remote(begun, gate.path)
    wait_until(lambda: notes(begun), SECONDS, "the node is busy")
    waits = where.options(scheduling_strategy=hard).remote()
    prefers = where.options(scheduling_strategy=soft).remote()
    assert weft.wait([waits, prefers], timeout=0.2)[0] == []
    cluster.kill_node(added)
    with pytest.raises(weft.WeftError):
        weft.get(held, timeout=SECONDS)
    with pytest.raises(weft.UnschedulableError, match="that node has left the cluster|is not in the cluster"):
        weft.get(waits, timeout=SECONDS)
    assert weft.get(prefers, timeout=SECONDS) in nodes


@weft.remote(num_cpus=0)
class Somewhere:
    def where(self):
        return here()

    def make(self, node):
        self.made = Somewhere.options(scheduling_strategy=NodeAffinity(node)).remote()
        return weft.get(self.made.where.remote())

    def pid(self):
        return os.getpid()


def made(**options) -> str:
    actor = Somewhere.options(**options).remote()
    return weft.get(actor.where.remote(), timeout=SECONDS)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_actors_on_each_node(nodes, number, soft):
    strategy = NodeAffinity(nodes[number], soft=soft)
    assert made(scheduling_strategy=strategy) == nodes[number]
    assert made(scheduling_strategy=strategy, num_cpus=1) == nodes[number]


def test_actors_are_spread(nodes):
    spread = [Somewhere.options(scheduling_strategy="SPREAD").remote() for _ in range(12)]
    found = weft.get([actor.where.remote() for actor in spread], timeout=SECONDS)
    assert set(found) == set(nodes)


def test_actors_by_labels(nodes):
    assert made(label_selector={"zone": "us"}) in nodes[1:]
    assert made(label_selector={"disk": "nvme"}) == nodes[2]
    assert made(label_selector={"zone": "eu"}, scheduling_strategy="SPREAD") == nodes[0]


def test_actors_that_actors_place(nodes):
    parent = Somewhere.options(scheduling_strategy=NodeAffinity(nodes[1])).remote()
    for node in nodes:
        assert weft.get(parent.make.remote(node), timeout=SECONDS) == node


def test_detached_actors_are_placed(nodes):
    for i, node in enumerate(nodes):
        options = {"name": f"placed {i}", "lifetime": "detached", "scheduling_strategy": NodeAffinity(node)}
        actor = Somewhere.options(**options).remote()
        assert weft.get(actor.where.remote(), timeout=SECONDS) == node
        weft.kill(actor)


def test_an_actor_is_restarted_where_it_must_be(nodes):
    actor = Somewhere.options(scheduling_strategy=NodeAffinity(nodes[2]), max_restarts=1, max_task_retries=1).remote()
    os.kill(weft.get(actor.pid.remote(), timeout=SECONDS), signal.SIGKILL)
    assert weft.get(actor.where.remote(), timeout=SECONDS) == nodes[2]


def test_an_actor_waits_for_a_node_that_is_full(nodes):
    strategy = NodeAffinity(nodes[1])
    first = Somewhere.options(scheduling_strategy=strategy, num_cpus=2).remote()
    assert weft.get(first.where.remote(), timeout=SECONDS) == nodes[1]
    second = Somewhere.options(scheduling_strategy=strategy, num_cpus=2).remote()
    waits = second.where.remote()
    assert weft.wait([waits], timeout=0.2)[0] == []
    weft.kill(first)
    assert weft.get(waits, timeout=SECONDS) == nodes[1]


def test_an_actor_that_waits_for_its_place_can_be_killed(nodes):
    actor = Somewhere.options(label_selector={"zone": "moon"}).remote()
    called = actor.where.remote()
    assert weft.wait([called], timeout=0.2)[0] == []
    weft.kill(actor)
    with pytest.raises(weft.ActorDiedError, match="killed on request"):
        weft.get(called, timeout=SECONDS)


def test_an_actor_for_a_node_that_is_not_there(nodes):
    nobody = nodes[0][:16] + f"{99:016x}"
    actor = Somewhere.options(scheduling_strategy=NodeAffinity(nobody)).remote()
    with pytest.raises(weft.UnschedulableError, match="node 99 only, but it is not in the cluster"):
        weft.get(actor.where.remote(), timeout=SECONDS)
    assert made(scheduling_strategy=NodeAffinity(nobody, soft=True)) in nodes
    stranger = "0" * 31 + "1"
    actor = Somewhere.options(scheduling_strategy=NodeAffinity(stranger)).remote()
    with pytest.raises(weft.UnschedulableError, match=f"{stranger} only, and no such node belongs to this cluster"):
        weft.get(actor.where.remote(), timeout=SECONDS)


def test_an_actor_dies_with_the_only_node_that_it_may_be_on(cluster, nodes):
    added = cluster.add_node(num_cpus=1)
    node = weft.nodes()[-1]["NodeID"]
    hard = Somewhere.options(scheduling_strategy=NodeAffinity(node), max_restarts=-1).remote()
    soft = Somewhere.options(scheduling_strategy=NodeAffinity(node, soft=True), max_restarts=-1, max_task_retries=-1)
    soft = soft.remote()
    assert weft.get([hard.where.remote(), soft.where.remote()], timeout=SECONDS) == [node, node]
    cluster.kill_node(added)
    wait_until(lambda: weft.get(soft.where.remote(), timeout=SECONDS) in nodes, SECONDS, "it is restarted elsewhere")

    def dead() -> bool:
        try:
            weft.get(hard.where.remote(), timeout=SECONDS)
        except weft.UnschedulableError as error:
            return "left the cluster" in str(error) or "not in the cluster" in str(error)
        except weft.ActorUnavailableError:
            return False
        return False

    wait_until(dead, SECONDS, "the actor cannot be placed")


def test_nothing_of_it_is_seen_as_a_resource(nodes):
    @weft.remote
    def assigned():
        return weft.get_runtime_context().get_assigned_resources()

    options = {"scheduling_strategy": NodeAffinity(nodes[1]), "label_selector": {"zone": "us"}}
    assert weft.get(assigned.options(**options).remote(), timeout=SECONDS) == {"CPU": 1.0}


def test_a_private_session(no_session):
    weft.init(num_cpus=2)
    mine = weft.nodes()[0]["NodeID"]
    assert placed(scheduling_strategy="SPREAD") == [mine] * 5
    assert placed(scheduling_strategy=NodeAffinity(mine)) == [mine] * 5
    other = mine[:31] + "9"
    assert placed(scheduling_strategy=NodeAffinity(other, soft=True)) == [mine] * 5
    with pytest.raises(weft.UnschedulableError, match=f"it asks for node {other}, and this private session has only"):
        placed(scheduling_strategy=NodeAffinity(other))
    assert placed(label_selector={"zone": "!*"}) == [mine] * 5
    with pytest.raises(weft.UnschedulableError, match="labels zone=eu"):
        placed(label_selector={"zone": "eu"})


def test_mistakes():
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        NodeAffinity("node-1")
    with pytest.raises(TypeError, match="NodeID"):
        NodeAffinity(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="soft must be True or False"):
        NodeAffinity("0" * 32, soft=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='"DEFAULT", "SPREAD" or a NodeAffinity'):
        where.options(scheduling_strategy="spread")
    with pytest.raises(NotImplementedError, match="placement groups"):
        where.options(scheduling_strategy=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="label_selector must be a dict"):
        where.options(label_selector="zone=eu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'a b' is no value"):
        where.options(label_selector={"zone": "in(x,a b)"})
    with pytest.raises(ValueError, match="is no key"):
        where.options(label_selector={"": "x"})
    with pytest.raises(ValueError, match="the first no ~"):
        where.options(resources={"~spread": 1})


def test_strategies_are_values():
    strategy = NodeAffinity("0" * 32, soft=True)
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert len({strategy, NodeAffinity("0" * 32, soft=True), NodeAffinity("0" * 32)}) == 2
    assert repr(strategy) == f"NodeAffinity('{'0' * 32}', soft=True)"
    with pytest.raises(AttributeError):
        strategy.soft = False  # type: ignore[misc]
