"""Several nodes on one machine, for tests of programs that are to run on a cluster.

    from weft.testing import Cluster

    def test_my_program():
        with Cluster(head={"num_cpus": 2}) as cluster:
            node = cluster.add_node(num_cpus=1, resources={"lamp": 1})
            weft.init(address=cluster.address)
            ...
            cluster.kill_node(node)

The nodes are real: each has its node daemon and its workers, and they talk over TCP on 127.0.0.1. Nothing is left
behind, on disk or in memory, even if the program that made the cluster is killed: its nodes end when it ends. Needs no
network and no files of the user's; such a cluster has nothing to do with others.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Optional

from . import _api, _core
from ._observe import NODES, Session, observe
from ._options import check_bytes, check_labels, check_name, check_resource_amount, check_resources
from .exceptions import WeftError

__all__ = ["Cluster", "Node"]

_START_SECONDS = 30.0  # a machine may be very busy
_END_SECONDS = 10.0


class Node:
    """One node of a Cluster."""

    def __init__(self, name: str, pid: int, is_head: bool, log: int):
        self.name = name
        """Its name; `weft.nodes()` calls it NodeName."""
        self.pid = pid
        """The process of its node daemon."""
        self.is_head = is_head
        self._log = log
        self._process = os.pidfd_open(pid)  # so that its number cannot come to mean another process

    @property
    def alive(self) -> bool:
        """Whether its daemon runs."""
        return not self._ended(0)

    def log(self) -> str:
        """The log of its daemon."""
        size = os.fstat(self._log).st_size
        return os.pread(self._log, size, 0).decode(errors="replace")

    def _signal(self, number: int) -> None:
        if self._process >= 0:
            try:
                signal.pidfd_send_signal(self._process, number)
            except ProcessLookupError:
                pass

    def _ended(self, seconds: float) -> bool:
        if self._process < 0:
            return True
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(int(seconds * 1000)))

    def _forget(self) -> None:
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def __del__(self) -> None:
        for descriptor in (getattr(self, "_process", -1), getattr(self, "_log", -1)):
            if descriptor >= 0:
                os.close(descriptor)

    def __repr__(self):
        state = "" if self.alive else ", ended"
        return f"<weft.testing.Node {self.name!r}{', head' if self.is_head else ''}, pid {self.pid}{state}>"


class Cluster:
    """Nodes on this machine. `with Cluster() as cluster: ...` ends them all.

    head: the arguments of `add_node` for the first node, such as {"num_cpus": 2}.
    """

    def __init__(self, head: Optional[dict] = None):
        self.address = ""
        """What `weft.init(address=...)` takes, "host:port" of the head."""
        self._token = os.urandom(32).hex()
        self._nodes: list = []
        self._made = 0
        self._owner = os.getpid()
        if head is not None and not isinstance(head, dict):
            raise TypeError(
                f'head must be a dict of the arguments of add_node, such as {{"num_cpus": 2}}, not {head!r}'
            )
        try:
            self.add_node(**(head or {}))
        except BaseException:
            self.shutdown()
            raise

    @property
    def nodes(self) -> list:
        """Those that run, the head first."""
        return [node for node in self._nodes if node.alive]

    @property
    def head(self) -> Node:
        """The first node, which leads the cluster."""
        if not self._nodes:
            raise WeftError("this cluster has been shut down")
        return self._nodes[0]

    def add_node(
        self,
        *,
        num_cpus: int = 1,
        num_gpus: int = 0,
        resources: Optional[dict] = None,
        labels: Optional[dict] = None,
        object_store_memory: Optional[int] = None,
        name: Optional[str] = None,
    ) -> Node:
        """Start a node, and return when it belongs to the cluster. The arguments are those of `weft start`."""
        if self.address and not self._nodes:
            raise WeftError("this cluster has been shut down; make another one")
        cpus, gpus = check_resource_amount("num_cpus", num_cpus), check_resource_amount("num_gpus", num_gpus)
        for what, amount in (("num_cpus", cpus), ("num_gpus", gpus)):
            if amount != int(amount):
                raise ValueError(f"{what} must be a whole number, not {amount!r}")
        options = [f"--num-cpus={int(cpus)}", f"--num-gpus={int(gpus)}"]
        for resource, amount in check_resources("resources", resources or {}).items():
            options.append(f"--resource={resource}={amount:.4f}")
        labelled = ",".join(f"{key}={value}" for key, value in check_labels("labels", labels or {}).items())
        if labelled:
            options.append(f"--labels={labelled}")
        if object_store_memory is not None:
            options.append(f"--object-store-memory={check_bytes('object_store_memory', object_store_memory)}")
        self._made += 1
        name = f"node-{self._made}" if name is None else check_name("name", name)
        options.append(f"--name={name}")
        options += [f"--address={self.address}"] if self.address else ["--head", "--port=0"]
        node = self._start(options, name)
        self._nodes.append(node)
        return node

    def kill_node(self, node: Node) -> None:
        """Kill a node's daemon (SIGKILL), as if its machine had lost power; its workers end too. The others notice
        within a second: wait_for_nodes waits for that."""
        self._check(node)
        node._signal(signal.SIGKILL)
        if not node._ended(_END_SECONDS):
            raise WeftError(f"{node!r} does not end")

    def remove_node(self, node: Node) -> None:
        """End a node in order, as `weft stop` does. Its workers end, and what they ran runs elsewhere, if it may."""
        self._check(node)
        if node.is_head and len(self.nodes) > 1:
            raise ValueError("the head leads the others: remove them first, or kill_node(cluster.head), or shutdown()")
        node._signal(signal.SIGTERM)
        if not node._ended(_END_SECONDS):
            raise WeftError(f"{node!r} does not end; its log:\n{node.log()}")

    def wait_for_nodes(self, count: Optional[int] = None, timeout: float = 10.0) -> None:
        """Wait until the head counts so many living nodes; by default those that run. TimeoutError if it does not."""
        wanted = len(self.nodes) if count is None else count
        deadline = time.monotonic() + timeout
        while True:
            seen = self._alive()
            if seen == wanted:
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the head counts {seen} living nodes after {timeout:g} s, not {wanted}")
            time.sleep(0.01)

    def shutdown(self) -> None:
        """End all nodes and what they have started; first of all this process's session, if it has joined. Returns
        when they are gone; does nothing the second time."""
        nodes, self._nodes = self._nodes, []
        if os.getpid() != self._owner:
            return  # a fork of the process that has the cluster
        if _core.node_pid() in [node.pid for node in nodes]:
            _api.shutdown()
        for node in reversed(nodes):
            node._signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        for node in nodes:
            if not node._ended(max(0.0, deadline - time.monotonic())):
                node._signal(signal.SIGKILL)
                node._ended(_END_SECONDS)
            node._forget()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if getattr(self, "_nodes", None):
            self.shutdown()

    def __repr__(self):
        return f"<weft.testing.Cluster {self.address}: {len(self.nodes)} nodes>"

    def _check(self, node: Node) -> None:
        if not isinstance(node, Node):
            raise TypeError(f"node must be one that add_node returned, or cluster.head, not {node!r}")
        if not any(node is mine for mine in self._nodes):
            raise ValueError(f"{node!r} is no node of this cluster")

    def _alive(self) -> int:
        head = self.head
        if not head.alive:
            raise WeftError(f"the head of this cluster has ended: {head!r}; its log:\n{head.log()}")
        return sum(node["alive"] for node in observe(NODES, Session(os.geteuid(), head.pid))["nodes"])

    def _start(self, options: list, name: str) -> Node:
        import json
        import subprocess

        # In memory: nothing must be left on disk.
        token, log = os.memfd_create("weft-token"), os.memfd_create("weft-log")
        try:
            os.write(token, self._token.encode())
            os.lseek(token, 0, os.SEEK_SET)
            done = subprocess.run(
                [_api._program(), "start", *options, "--json", "--end-with-parent"]
                + [f"--token-fd={token}", f"--log-fd={log}"],
                pass_fds=(token, log),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_START_SECONDS,
            )
            if done.returncode != 0:
                raise WeftError(f"the node {name!r} cannot be started: {done.stderr.strip()}")
            said = json.loads(done.stdout)
            node = Node(name, said["pid"], not self.address, os.dup(log))
            self.address = said["address"]
            return node
        except subprocess.TimeoutExpired:
            raise WeftError(f"the node {name!r} did not start within {_START_SECONDS:g} s") from None
        finally:
            os.close(token)
            os.close(log)
