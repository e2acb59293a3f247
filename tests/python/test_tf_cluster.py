"""weft.util.tf_cluster on a TensorFlow of a page: addresses, ports, deaths, and what is left.

The stub's server listens as the real one does, with SO_REUSEPORT if TF_GRPC_REUSE_PORT says so. tests/learning runs the
real one.
"""

from __future__ import annotations

import importlib.util

import pytest
from helpers import run_driver
from weft.util import TfClusterError, tf_cluster

STUB = """
import os, socket, sys, types

__version__ = "2.0"
errors = types.SimpleNamespace()
class OpError(Exception):
    message = "Could not start gRPC server"
class UnavailableError(OpError): pass
class AbortedError(OpError): pass
errors.OpError, errors.UnavailableError, errors.AbortedError = OpError, UnavailableError, AbortedError

class Server:
    def __init__(self, spec, job_name, task_index):
        port = int(spec[job_name][task_index].rpartition(":")[2])
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if os.environ.get("TF_GRPC_REUSE_PORT") == "true":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self.socket.bind(("", port))
        except OSError:
            raise errors.OpError() from None
        self.socket.listen()

distribute = types.SimpleNamespace(Server=Server)
train = types.SimpleNamespace(ClusterSpec=lambda spec: types.SimpleNamespace(as_dict=lambda: spec))
compat = types.SimpleNamespace(v1=types.SimpleNamespace(ConfigProto=lambda **fields: fields))
"""

PRELUDE = """
import os, signal, socket, time
import weft
from weft.testing import Cluster
from weft.util import TfClusterError, tf_cluster

def answers(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        return True
    except ConnectionRefusedError:
        return False

def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)

def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")

"""


@pytest.fixture
def program(tmp_path):
    """Runs a program that finds the stub as tensorflow; nothing may be left of it."""
    (tmp_path / "tensorflow.py").write_text(STUB)

    def run(text, **options):
        import textwrap

        return run_driver(PRELUDE + textwrap.dedent(text), env={"PYTHONPATH": str(tmp_path)}, **options)

    return run


def test_a_cluster_serves_at_the_addresses_that_it_announces(program):
    driver = program(
        """
        import json
        weft.init(num_cpus=2)  # fewer than there are tasks
        with tf_cluster(ps=2, workers=2) as cluster:
            addresses = [address for job in cluster.spec.values() for address in job]
            assert len(set(addresses)) == 4 and all(map(answers, addresses)), addresses
            assert cluster.cluster_spec().as_dict() == cluster.spec
            def told(task, more):
                return task.job, task.index, task.spec, task.target, task.is_chief, os.environ["TF_CONFIG"], more
            for index, said in enumerate(weft.get(cluster.run(told, weft.put(7)))):
                config = {"cluster": cluster.spec, "task": {"type": "worker", "index": index}}
                assert json.loads(said[5]) == json.loads(cluster.tf_config("worker", index)) == config
                expected = ("worker", index, cluster.spec, cluster.target("worker", index), index == 0)
                assert said[:5] == expected and said[6] == 7, said
            assert weft.get(cluster.run(told, 8, job="ps", index=1))[:2] == ("ps", 1)
            assert cluster.config(timeout=2.5) == {"operation_timeout_in_ms": 2500}
            assert "more than 0 seconds, but is 0" in str(raised(lambda: cluster.config(timeout=0)))
            print(cluster)
        until(lambda: not any(map(answers, addresses)))
        print(cluster, raised(lambda: cluster.run(told)))
        """
    )
    assert driver.stdout.splitlines() == [
        "<weft.util.TfCluster: 2 ps, 2 worker>",
        "<weft.util.TfCluster: ended> this TensorFlow cluster has been shut down; make another one with tf_cluster",
    ]


def test_tasks_are_spread_over_three_nodes_and_replaced_where_they_were(program):
    program(
        """
        with Cluster(head={"num_cpus": 2}) as nodes:
            second, third = nodes.add_node(num_cpus=2), nodes.add_node(num_cpus=2)
            weft.init(address=nodes.address)
            with tf_cluster(ps=1, workers=3) as cluster:
                assert len({process.node_id for process in cluster.processes}) == 3, cluster.processes
                for index in range(3):
                    old = cluster.processes[1 + index]
                    os.kill(old.pid, signal.SIGKILL)
                    until(cluster.dead)
                    assert cluster.dead() == [old]
                    cluster.check()  # the ps is there
                    cluster.replace("worker", index)
                    new = cluster.processes[1 + index]
                    assert new[:4] == old[:4] and new.pid != old.pid and answers(new.address)
                    assert weft.get(cluster.run(lambda task: os.getpid(), index=index)) == new.pid
                assert not cluster.dead()
                gone = {node["NodeName"]: node["NodeID"] for node in weft.nodes()}[third.name]
                lost = next(process for process in cluster.processes if process.node_id == gone)
                nodes.kill_node(third)
                nodes.wait_for_nodes(2)
                error = raised(lambda: cluster.replace(lost.job, lost.index))
                assert isinstance(error, TfClusterError) and "its node 127.0.0.1 is gone" in str(error), error
        """
    )


def test_a_call_ends_when_a_ps_does(program):
    program(
        """
        import threading
        weft.init(num_cpus=4)
        cluster = tf_cluster(ps=2, workers=2)
        waiting = cluster.run(lambda task: threading.Event().wait())
        ps, worker = cluster.processes[1], cluster.processes[2]
        os.kill(ps.pid, signal.SIGKILL)
        assert "ps 1" in str(raised(cluster.check))  # at once, though nobody has told this process yet
        calls = [*(lambda ref=ref: ref for ref in waiting), lambda: cluster.run(print, index=0)]
        for call in calls:  # the last one when that worker knows already
            error = raised(lambda: weft.get(call(), timeout=30))
            assert isinstance(error, TfClusterError), error
            assert f"ps 1 of the TensorFlow cluster, pid {ps.pid} at {ps.address}, has ended" in str(error), error
            assert "SIGKILL" in str(error) and "cluster.replace('ps', 1)" in str(error), error
        cluster.replace("ps", 1)
        cluster.check()
        assert weft.get(cluster.run(lambda task: task.index), timeout=30) == [0, 1]
        # Without ps, workers need each other.
        pair = tf_cluster(workers=2, servers=False)
        waiting = pair.run(lambda task: threading.Event().wait(), index=0)
        os.kill(pair.processes[1].pid, signal.SIGKILL)
        assert "worker 1 of the TensorFlow cluster" in str(raised(lambda: weft.get(waiting, timeout=30)))
        assert "has no server" in str(raised(pair.target))
        """
    )


def test_errors_of_functions_are_their_own(program):
    program(
        """
        weft.init(num_cpus=2)
        with tf_cluster(ps=1) as cluster:
            def fail(task):
                raise KeyError("mine")
            assert isinstance(raised(lambda: weft.get(cluster.run(fail, index=0))), KeyError)
            assert "reduce" not in str(raised(lambda: weft.put(cluster)))
            assert "stays in the process that made it" in str(raised(lambda: weft.put(cluster)))
            for call, words in [
                (lambda: cluster.run(3), "run takes a function, not 3"),
                (lambda: cluster.run(print, job="master"), "no job 'master', but 'ps', 'worker'"),
                (lambda: cluster.target("worker", 1), "has the tasks 0 to 0, not 1"),
                (lambda: cluster.replace("ps", True), "index must be an int, not True"),
            ]:
                assert words in str(raised(call)), raised(call)
        """
    )


def test_ports_that_are_taken(program):
    program(
        """
        weft.init(num_cpus=4)
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # another TensorFlow's, perhaps
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = raised(lambda: tf_cluster(ps=1, workers=0, ports=[port]))
        assert isinstance(error, TfClusterError), error
        assert f"ps 0 of the TensorFlow cluster cannot start: port {port} is taken on 127.0.0.1" in str(error), error
        free = []
        while len(free) < 2:
            with socket.socket() as probe:
                probe.bind(("", 0))
                free.append(probe.getsockname()[1])
        with tf_cluster(ps=1, workers=1, ports=[port, *free]) as cluster:
            used = [int(address.rpartition(":")[2]) for job in cluster.spec.values() for address in job]
            assert sorted(used) == sorted(free)
            error = raised(lambda: tf_cluster(ps=1, workers=0, ports=free))
            assert "are taken on 127.0.0.1. Name others (ports=)" in str(error), error
        until(lambda: not any(actor["state"] != "DEAD" for actor in weft.state.list_actors()))
        """
    )


def test_a_dropped_cluster_and_one_that_cannot_start_leave_nothing(program):
    program(
        """
        weft.init(num_cpus=2)
        cluster = tf_cluster(ps=1, workers=1)
        address = cluster.spec["ps"][0]
        del cluster
        until(lambda: not answers(address))
        error = raised(lambda: tf_cluster(ps=1, workers=1, worker_options={"resources": {"moon": 1}}, timeout=30))
        assert isinstance(error, (TfClusterError, weft.UnschedulableError)), error
        assert "moon" in str(error) and "worker 0" in str(error), error
        until(lambda: not any(actor["state"] != "DEAD" for actor in weft.state.list_actors()))
        """
    )


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed here")
def test_without_tensorflow(session):
    with pytest.raises(
        TfClusterError, match=r"(ps|worker) 0 of the .* TensorFlow is not installed for .*python.*pip install"
    ):
        tf_cluster(ps=1, workers=1)


def test_without_servers_of_today(program, tmp_path):
    driver = program(
        f"""
        open({str(tmp_path / "tensorflow.py")!r}, "w").write("__version__ = '1.4.0'")
        weft.init(num_cpus=2)
        print(raised(lambda: tf_cluster(ps=1, workers=0)))
        """
    )
    assert driver.stdout.startswith(
        "ps 0 of the TensorFlow cluster cannot start: TensorFlow 1.4.0 has no tf.distribute"
    )


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"ps": -1}, ValueError, "ps must not be negative, but is -1"),
        ({"ps": 1.0}, TypeError, "ps must be an int, not 1.0"),
        ({"workers": True}, TypeError, "workers must be an int, not True"),
        ({"workers": 0}, ValueError, "a cluster needs a task"),
        ({"chief": 1}, TypeError, "chief and servers must be True or False, not 1"),
        ({"ports": 2222}, TypeError, r"ports must be several, such as range\(2222, 2300\), not 2222"),
        ({"ports": [0]}, ValueError, "a port is a number from 1 to 65535, not 0"),
        ({"ports": []}, ValueError, "ports is empty"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0 seconds"),
        ({"timeout": "1"}, TypeError, "timeout must be a number of seconds, not '1'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        tf_cluster(**arguments)
