"""weft.testing.Cluster: several nodes for users' own tests, of which nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import weft
from helpers import Driver, descendants, wait_until
from weft.testing import Cluster, Node

SECONDS = 20


@pytest.fixture
def joined(no_session):
    """A head with one CPU, this process as its driver, and another node that has a lamp."""
    with Cluster(head={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=1, resources={"lamp": 1})
        weft.init(address=cluster.address)
        yield cluster


def daemon_of_worker() -> int:
    """In a task: the node daemon whose worker this is."""
    with open(f"/proc/{os.getppid()}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_tasks_run_on_the_nodes(joined):
    head, second = joined.nodes
    where = weft.remote(daemon_of_worker)
    assert weft.get(where.options(num_cpus=0, resources={"lamp": 1}).remote(), timeout=SECONDS) == second.pid
    assert weft.get(where.remote(), timeout=SECONDS) in (head.pid, second.pid)
    assert (head.is_head, second.is_head) == (True, False)
    assert (head.name, second.name) == ("node-1", "node-2")


def test_a_killed_node_takes_its_workers_along_and_the_head_notices(joined):
    second = joined.nodes[1]
    where = weft.remote(daemon_of_worker).options(num_cpus=0, resources={"lamp": 1})
    weft.get(where.remote(), timeout=SECONDS)
    below = descendants(second.pid)
    assert below
    begin = time.monotonic()
    joined.kill_node(second)
    assert not second.alive and joined.nodes == [joined.head]
    joined.wait_for_nodes(1)
    assert time.monotonic() - begin < 5
    wait_until(lambda: not any(running(pid) for pid in below), SECONDS, "its workers are gone")
    third = joined.add_node(resources={"lamp": 1})
    assert weft.get(where.remote(), timeout=SECONDS) == third.pid


def test_a_removed_node_is_gone_at_once(joined):
    second = joined.nodes[1]
    joined.remove_node(second)
    joined.wait_for_nodes(1, timeout=1)
    assert joined.nodes == [joined.head]


def test_nothing_is_left_after_shutdown(no_session):
    cluster = Cluster()
    cluster.add_node()
    weft.init(address=cluster.address)
    weft.get(weft.remote(lambda: os.getpid()).remote(), timeout=SECONDS)
    pids = [node.pid for node in cluster.nodes]
    pids += [pid for node in pids for pid in descendants(node)]
    assert len(pids) > 3
    cluster.shutdown()
    assert not weft.is_initialized()
    assert not any(running(pid) for pid in pids)
    cluster.shutdown()
    assert cluster.nodes == []
    with pytest.raises(weft.WeftError, match="shut down"):
        cluster.add_node()
    with pytest.raises(weft.WeftError, match="shut down"):
        _ = cluster.head


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(3)", "sys.exit()", "raise KeyError"])
def test_nothing_is_left_of_a_program_however_it_ends(end):
    driver = Driver(
        f"""
        import os, sys, weft
        from weft.testing import Cluster

        cluster = Cluster()
        cluster.add_node()
        weft.init(address=cluster.address)
        print(weft.get(weft.remote(lambda: os.getpid()).remote()) > 0, flush=True)
        {end}
        """
    )
    driver.finish(SECONDS)
    assert driver.stdout.splitlines()[0] == "True", driver.stderr
    driver.expect_nothing_left()


def test_nothing_is_left_on_disk(tmp_path, no_session):
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    program = """
        import os, weft
        from weft.testing import Cluster

        with Cluster() as cluster:
            cluster.add_node()
            weft.init(address=cluster.address)
            print(weft.get(weft.remote(lambda: 1).remote()), os.listdir(os.environ["HOME"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.stdout == "1 []\n", done.stderr
    assert os.listdir(tmp_path) == []


def test_clusters_are_strangers_to_each_other(no_session):
    with Cluster() as one, Cluster() as other:
        assert one.address != other.address
        other.add_node()
        one.wait_for_nodes(1)
        other.wait_for_nodes(2)
        with pytest.raises(ValueError, match="no node of this cluster"):
            one.kill_node(other.head)


def test_a_head_that_is_killed_ends_the_waiting(no_session):
    with Cluster() as cluster:
        cluster.kill_node(cluster.head)
        with pytest.raises(weft.WeftError, match="the head of this cluster has ended"):
            cluster.wait_for_nodes(1)


def test_mistakes(no_session):
    with Cluster(head={"name": "one", "labels": {"zone": "eu"}}) as cluster:
        with pytest.raises(weft.WeftError, match="the name one belongs to node 1"):
            cluster.add_node(name="one")
        with pytest.raises(ValueError, match="num_cpus must be a whole number"):
            cluster.add_node(num_cpus=0.5)
        with pytest.raises(TypeError, match="resources must be a dict"):
            cluster.add_node(resources=["lamp"])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'a b' is no value"):
            cluster.add_node(labels={"zone": "a b"})
        with pytest.raises(TypeError, match="num_cpu"):
            cluster.add_node(num_cpu=2)  # type: ignore[call-arg]
        with pytest.raises(TimeoutError, match="counts 1 living nodes after 0.05 s, not 2"):
            cluster.wait_for_nodes(2, timeout=0.05)
        with pytest.raises(TypeError, match="add_node returned"):
            cluster.kill_node("one")  # type: ignore[arg-type]
        cluster.add_node(name="two")
        with pytest.raises(ValueError, match="the head leads the others"):
            cluster.remove_node(cluster.head)
        assert [node.name for node in cluster.nodes] == ["one", "two"]
    with pytest.raises(TypeError, match="head must be a dict"):
        Cluster(head=2)  # type: ignore[arg-type]


def test_a_node_that_has_ended_shows_its_log(no_session):
    with Cluster() as cluster:
        node = cluster.add_node(name="two")
        os.kill(node.pid, signal.SIGSTOP)
        assert node.alive
        os.kill(node.pid, signal.SIGCONT)
        cluster.kill_node(node)
        cluster.wait_for_nodes(1)
        assert "node 2 (two) is no longer in the cluster" in cluster.head.log()
        assert isinstance(node, Node) and "ended" in repr(node)
