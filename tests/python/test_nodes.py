"""What programs and people see of a cluster: weft.nodes(), resources, `weft status`, `weft list nodes`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig

import pytest
import weft
from helpers import hold, wait_until
from weft.testing import Cluster

SECONDS = 20


@pytest.fixture
def cluster(no_session):
    with Cluster(head={"num_cpus": 1, "name": "first"}) as made:
        made.add_node(num_cpus=2, resources={"lamp": 1.5}, labels={"zone": "eu", "disk": "ssd"}, name="second")
        weft.init(address=made.address)
        yield made


def command(*arguments) -> str:
    program = os.path.join(sysconfig.get_path("scripts"), "weft")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_nodes_are_listed(cluster):
    first, second = weft.nodes()
    assert (first["NodeName"], second["NodeName"]) == ("first", "second")
    assert (first["IsHead"], second["IsHead"]) == (True, False)
    assert f"{first['NodeManagerAddress']}:{first['NodeManagerPort']}" == cluster.address
    assert second["NodeManagerPort"] > 0 and second["NodeManagerPort"] != first["NodeManagerPort"]
    assert first["Resources"] == {"CPU": 1.0}
    assert second["Resources"] == {"CPU": 2.0, "lamp": 1.5}
    assert (first["Labels"], second["Labels"]) == ({}, {"disk": "ssd", "zone": "eu"})
    assert first["Alive"] and second["Alive"]
    assert first["NodeID"] == weft.get_runtime_context().get_node_id() != second["NodeID"]


def test_a_task_is_told_its_own_node_and_sees_the_same(cluster):
    @weft.remote(num_cpus=0, resources={"lamp": 1})
    def look():
        return weft.get_runtime_context().get_node_id(), weft.nodes(), weft.cluster_resources()

    node, nodes, resources = weft.get(look.remote(), timeout=SECONDS)
    assert node == weft.nodes()[1]["NodeID"]
    assert [row["NodeID"] for row in nodes] == [row["NodeID"] for row in weft.nodes()]
    assert resources == {"CPU": 3.0, "lamp": 1.5}


def test_resources_are_those_of_all_nodes(cluster, gate):
    assert weft.cluster_resources() == {"CPU": 3.0, "lamp": 1.5}
    wait_until(lambda: weft.available_resources() == {"CPU": 3.0, "lamp": 1.5}, SECONDS)
    held = weft.remote(hold).options(num_cpus=2, resources={"lamp": 0.5}).remote(gate.path)
    wait_until(lambda: weft.available_resources() == {"CPU": 1.0, "lamp": 1.0}, SECONDS)
    gate.open()
    weft.get(held, timeout=SECONDS)
    wait_until(lambda: weft.available_resources() == {"CPU": 3.0, "lamp": 1.5}, SECONDS)


def test_the_context_says_what_the_cluster_has(no_session):
    with Cluster(head={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=2)
        with weft.init(address=cluster.address) as context:
            assert context.num_cpus == 3
            assert context.resources == {"CPU": 3.0}


def test_a_node_that_has_gone_stays_in_the_list(cluster):
    cluster.kill_node(cluster.nodes[1])
    cluster.wait_for_nodes(1)
    first, second = weft.nodes()
    assert first["Alive"] and not second["Alive"]
    assert second["NodeName"] == "second" and second["DeathReason"]
    assert second["Resources"] == second["Available"] == {}
    assert weft.cluster_resources() == {"CPU": 1.0}
    third = cluster.add_node(name="second", num_cpus=4)
    assert [node["Alive"] for node in weft.nodes()] == [True, False, True]
    assert weft.cluster_resources() == {"CPU": 5.0}
    cluster.remove_node(third)
    cluster.wait_for_nodes(1)


def test_status_shows_the_nodes(cluster):
    said = command("status")
    assert f"cluster {cluster.address}, 2 nodes\n" in said
    assert "  CPU: 0 of 3 in use\n" in said
    assert f"  head first ({cluster.address}), here with pid {cluster.head.pid}: 0/1 CPU\n" in said
    (line,) = [line for line in said.splitlines() if line.startswith("  node second (127.0.0.1:")]
    assert line.endswith("): 0/2 CPU, 0/1.5 lamp disk=ssd zone=eu") or f"pid {cluster.nodes[1].pid}: 0/2 CPU" in line
    rows = [row for row in json.loads(command("status", "--json")) if row["address"].startswith("127.0.0.1:")]
    mine = {row["node_name"]: row for row in rows if row["daemon_pid"] in [node.pid for node in cluster.nodes]}
    assert set(mine) == {"first", "second"}
    assert mine["second"]["labels"] == {"disk": "ssd", "zone": "eu"}
    cluster.kill_node(cluster.nodes[1])
    cluster.wait_for_nodes(1)
    assert "node second" in command("status") and "has gone:" in command("status")


def test_list_nodes_asked_of_either_node(cluster):
    first, second = cluster.nodes
    for asked in (first, second):
        rows = json.loads(command("list", "nodes", "--json", f"--session={asked.pid}"))
        assert [(row["node_name"], row["state"]) for row in rows] == [("first", "ALIVE"), ("second", "ALIVE")]
        assert [row["daemon_pid"] for row in rows] == [asked.pid if name is asked else None for name in (first, second)]
        assert rows[1]["resources_available"] == {"CPU": 2.0, "lamp": 1.5}
    table = command("list", "nodes", f"--session={second.pid}")
    assert "second" in table and "disk=ssd, zone=eu" in table


def test_a_node_whose_head_is_gone_tells_what_it_knows(no_session):
    with Cluster() as cluster:
        second = cluster.add_node()
        cluster.kill_node(cluster.head)
        rows = json.loads(command("list", "nodes", "--json", f"--session={second.pid}"))
        assert len(rows) == 2
        assert [row["daemon_pid"] for row in rows] == [None, second.pid]
        assert "it does not answer" in rows[0]["death_cause"] and not rows[1]["death_cause"]
        assert re.search(rf"^  head \S+ \({cluster.address}\): it does not answer", command("status"), re.M)


def test_a_private_session_is_a_cluster_of_one(no_session):
    weft.init(num_cpus=2)
    (node,) = weft.nodes()
    assert node["IsHead"] and node["Alive"] and node["Resources"] == {"CPU": 2.0}
    assert node["NodeID"] == weft.get_runtime_context().get_node_id()
    assert len({weft.nodes()[0]["NodeID"] for _ in range(3)}) == 1
    weft.shutdown()
    weft.init(num_cpus=2)
    assert weft.nodes()[0]["NodeID"] != node["NodeID"]
