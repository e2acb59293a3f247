"""Where tasks run: "SPREAD", NodeAffinity, label_selector."""

from __future__ import annotations

import pickle
import time

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
    assert placed(scheduling_strategy="DEFAULT") == [nodes[0]] * 5


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
