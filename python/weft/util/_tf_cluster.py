"""TensorFlow's own clusters, of parameter servers and workers, with weft actors as their processes.

Programs call tf_cluster. weft places the processes, chooses and announces their ports, hands TensorFlow the
ClusterSpec, notices deaths and cleans up; what the processes say to each other then is TensorFlow's business. Needs
TensorFlow 2 on the nodes (TensorFlow 1's API is its tf.compat.v1), which is imported when a cluster starts, never with
weft. weft.util.ParameterServer is a parameter server without TensorFlow.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, Optional

from weft.exceptions import WeftError

__all__ = ["TfCluster", "TfClusterError", "TfProcess", "TfTask", "tf_cluster"]

_END_SECONDS = 10.0  # a killed process has let go of its port by then, also on a busy machine
_NOTICE_SECONDS = 2.0  # TensorFlow may see a lost connection earlier than weft the death; promise R8 says one second
_NO_SERVER = (
    "{} {} has no server to run a session on: a chief never has one, and a cluster made with servers=False has none"
)


class TfClusterError(WeftError):
    """A TensorFlow cluster cannot start, or has lost a process that the others need."""


class TfProcess(NamedTuple):
    """Which process serves a task of a TensorFlow cluster."""

    job: str
    index: int
    address: str
    node_id: str
    pid: int


class TfTask:
    """What a function that TfCluster.run runs knows of its place: its first argument."""

    def __init__(self, job: str, index: int, spec: dict, server: Any):
        self.job = job
        """The job: "worker", "ps" or "chief"."""
        self.index = index
        """The number within its job."""
        self.spec = spec
        """The addresses: {"ps": ["host:port", ...], "worker": [...]}."""
        self.server = server
        """This process's tf.distribute.Server; None in a chief, and in a cluster with servers=False."""

    @property
    def device(self) -> str:
        """The name of this task for tf.device: "/job:worker/task:0"."""
        return f"/job:{self.job}/task:{self.index}"

    @property
    def is_chief(self) -> bool:
        """Whether this is the task that initialises variables and writes checkpoints: the chief, or else worker 0."""
        return self.job == "chief" or (self.job == "worker" and self.index == 0 and "chief" not in self.spec)

    @property
    def target(self) -> str:
        """What tf.compat.v1.Session takes to run on this process's server: "grpc://host:port"."""
        if self.server is None:
            raise TfClusterError(_NO_SERVER.format(self.job, self.index))
        return "grpc://" + self.spec[self.job][self.index]

    def cluster_spec(self) -> Any:
        """The addresses as a tf.train.ClusterSpec."""
        return _cluster_spec(self.spec)

    def config(self) -> Any:
        """A tf.compat.v1.ConfigProto for sessions that use this process and the ps alone (between-graph replication).

        Without it a session waits for every task of the cluster before it begins, dead workers included.
        """
        import tensorflow as tf

        filters = dict.fromkeys([f"/job:{job}" for job in self.spec if job != "worker"] + [self.device])
        return tf.compat.v1.ConfigProto(device_filters=list(filters))

    def __repr__(self):
        return f"<weft.util.TfTask {self.job} {self.index} at {self.spec[self.job][self.index]}>"


def tf_cluster(
    ps: int = 0,
    workers: int = 1,
    *,
    chief: bool = False,
    servers: bool = True,
    ports: Any = None,
    ps_options: Optional[dict] = None,
    worker_options: Optional[dict] = None,
    timeout: float = 300.0,
) -> TfCluster:
    """Start a TensorFlow cluster, each task of which is a weft actor, and return when all of it serves.

    ps, workers: how many tasks of each job.
    chief: whether there is a task "chief" for the coordinator of tf.distribute, which starts a server of its own.
    servers: False starts no tf.distribute.Server, for strategies that start their own from TF_CONFIG
        (MultiWorkerMirroredStrategy). The ports are chosen and kept for them all the same.
    ports: those that may be used, such as range(2222, 2300), where a firewall asks for it; any free ones by default.
    ps_options, worker_options: options of the actors, such as {"num_gpus": 1}; the chief has those of workers. By
        default they are spread over the nodes.
    timeout: seconds for all to be up. TensorFlow's import alone takes several.

    TensorFlow's servers accept whoever reaches their ports, on all addresses of their machine.
    """
    import weft
    from weft import _api

    for name, value, least in (("ps", ps, 0), ("workers", workers, 0)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {value!r}")
        if value < least:
            raise ValueError(f"{name} must not be negative, but is {value}")
    if not isinstance(chief, bool) or not isinstance(servers, bool):
        raise TypeError(f"chief and servers must be True or False, not {chief!r} and {servers!r}")
    if ps + workers + chief == 0:
        raise ValueError("a cluster needs a task: ps, workers and chief are all 0")
    _check_timeout(timeout)
    if not weft.is_initialized():
        weft.init()
    if _api._local_mode:
        raise TfClusterError("a TensorFlow cluster needs processes of its own: init without local_mode=True")
    counts = {"chief": int(chief), "ps": ps, "worker": workers}
    options = {"ps": dict(ps_options or {}), "worker": dict(worker_options or {})}
    options["chief"] = options["worker"]
    cluster = TfCluster(
        {job: count for job, count in counts.items() if count}, options, _checked_ports(ports), servers, float(timeout)
    )
    try:
        cluster._start()
    except BaseException:
        cluster.shutdown()
        raise
    return cluster


class TfCluster:
    """A running TensorFlow cluster; tf_cluster makes it. `with tf_cluster(...) as cluster:` ends it too."""

    def __init__(self, counts: dict, options: dict, ports: Optional[list], servers: bool, timeout: float):
        self.spec: dict = {}
        """The addresses: {"ps": ["host:port", ...], "worker": [...]}."""
        self._counts = counts
        self._options = options
        self._ports = ports
        self._servers = servers
        self._timeout = timeout
        self._actors: dict = {}  # (job, index) -> handle
        self._processes: dict = {}  # (job, index) -> TfProcess
        self._lives: dict = {}  # (job, index) -> a reference that becomes an error when the process ends

    @property
    def processes(self) -> list:
        """A TfProcess for each task: its address, node and pid."""
        return list(self._processes.values())

    def cluster_spec(self) -> Any:
        """The addresses as a tf.train.ClusterSpec."""
        return _cluster_spec(self.spec)

    def target(self, job: str = "worker", index: int = 0) -> str:
        """What tf.compat.v1.Session takes to run on that task's server: "grpc://host:port"."""
        self._check_task(job, index)
        if not self._servers or job == "chief":
            raise TfClusterError(_NO_SERVER.format(job, index))
        return "grpc://" + self.spec[job][index]

    def config(self, timeout: float = 30.0) -> Any:
        """A tf.compat.v1.ConfigProto for sessions of this program on the cluster (in-graph replication).

        timeout: seconds that each run may take, and the session's start and close. TensorFlow then raises
            tf.errors.DeadlineExceededError, and check() says whether a process has ended. Without it such a session
            waits for ever for a process that has.
        """
        _check_timeout(timeout)
        import tensorflow as tf

        return tf.compat.v1.ConfigProto(operation_timeout_in_ms=max(1, round(1000 * timeout)))

    def tf_config(self, job: str = "worker", index: int = 0) -> str:
        """The value of the environment variable TF_CONFIG of that task, which run's functions find set already."""
        self._check_task(job, index)
        return _tf_config(self.spec, job, index)

    def resolver(self) -> Any:
        """A cluster resolver with which this process is the coordinator: for tf.distribute.ParameterServerStrategy."""
        import tensorflow as tf

        if "chief" in self.spec:
            raise TfClusterError(
                'this cluster has a chief of its own: run the coordinator there, cluster.run(f, job="chief"), or leave '
                "chief=True out of tf_cluster"
            )
        spec = {**self.spec, "chief": [f"{_own_address()}:{_free_port()}"]}
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(spec), task_type="chief", task_id=0, rpc_layer="grpc"
        )

    def run(self, function: Any, *arguments: Any, job: str = "worker", index: Optional[int] = None) -> Any:
        """Call `function(task, *arguments)` in each process of a job; returns a reference for each.

        task is a TfTask. With an index the function runs in that process alone, and one reference is returned. Each
        call has a thread of its own, and so a default graph of its own. A call fails with TfClusterError if a process
        ends that the others need while it runs: a ps, the chief, or in a cluster without ps any other.
        """
        if not callable(function):
            raise TypeError(f"run takes a function, not {function!r}")
        if index is not None:
            self._check_task(job, index)
            return self._actors[job, index].run.remote(function, *arguments)
        self._check_task(job, 0)
        return [self._actors[job, i].run.remote(function, *arguments) for i in range(self._counts[job])]

    def dead(self) -> list:
        """The TfProcess of each task whose process has ended."""
        import weft

        if not self._lives:
            return []
        names = {life: name for name, life in self._lives.items()}
        ended, _ = weft.wait(list(names), num_returns=len(names), timeout=0)
        return [self._processes[names[life]] for life in ended]

    def check(self) -> None:
        """Raise TfClusterError if a process has ended that the others need. Asks each of them, so that a death that
        TensorFlow has just met is found."""
        import time

        import weft

        asked = {name: self._actors[name].answer.remote() for name in self._needed()}
        deadline = time.monotonic() + _NOTICE_SECONDS
        for name, answer in asked.items():
            try:
                weft.get(answer, timeout=max(0.0, deadline - time.monotonic()))
            except weft.GetTimeoutError:
                pass  # alive, as far as anybody knows: its interpreter may be held by TensorFlow
            except weft.ActorError as error:
                raise TfClusterError(_lost(self._processes[name], _reason(error))) from None

    def replace(self, job: str, index: int) -> None:
        """Start a task in a new process at the same address, where the others find it; end the old one if it lives.

        A new ps has none of the variables of the old one: initialise or restore them.
        """
        import weft
        from weft.util.scheduling_strategies import NodeAffinity

        self._check_task(job, index)
        old = self._processes[job, index]
        host, _, port = old.address.rpartition(":")
        if not any(node["NodeID"] == old.node_id and node["Alive"] for node in weft.nodes()):
            raise TfClusterError(
                f"{job} {index} cannot be replaced: its node {host} is gone, and the others know it by the address "
                f"{old.address}. Shut this cluster down and make another one"
            )
        weft.kill(self._actors[job, index])
        with contextlib.suppress(weft.GetTimeoutError, weft.ActorError):
            weft.get(self._lives[job, index], timeout=_END_SECONDS)
        options = {**self._options[job], "scheduling_strategy": NodeAffinity(old.node_id)}
        self._make(job, index, options)
        self._announce([(job, index)], [int(port)], _END_SECONDS)
        self._serve([(job, index)])
        self._watch()

    def shutdown(self) -> None:
        """End all processes of the cluster. Does nothing the second time."""
        import weft

        actors, self._actors, self._lives, self._processes = self._actors, {}, {}, {}
        self._counts = {}
        if weft.is_initialized():
            for actor in actors.values():
                weft.kill(actor)

    def __enter__(self) -> TfCluster:
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # The calls by which deaths are noticed never end, so the actors would outlive their last handle.
        if getattr(self, "_actors", None):
            with contextlib.suppress(Exception):
                self.shutdown()

    def __reduce__(self):
        raise TypeError("a TfCluster stays in the process that made it; pass on cluster.spec or cluster.target()")

    def __repr__(self):
        tasks = ", ".join(f"{count} {job}" for job, count in self._counts.items())
        return f"<weft.util.TfCluster: {tasks or 'ended'}>"

    # ---- the machinery ----

    def _start(self) -> None:
        names = [(job, index) for job, count in self._counts.items() for index in range(count)]
        for job, index in names:
            self._make(job, index, {"scheduling_strategy": "SPREAD", **self._options[job]})
        self._announce(names, self._ports, 0.0)
        self.spec = {
            job: [self._processes[job, index].address for index in range(count)] for job, count in self._counts.items()
        }
        self._serve(names)
        self._watch()

    def _make(self, job: str, index: int, options: dict) -> None:
        import weft

        self._actors[job, index] = weft.remote(_TfServer).options(**options).remote(job, index)

    def _announce(self, names: list, ports: Optional[list], seconds: float) -> None:
        refs = [self._actors[name].announce.remote(ports, seconds) for name in names]
        for name, process in zip(names, self._get(names, refs)):
            self._processes[name] = TfProcess(*name, *process)

    def _serve(self, names: list) -> None:
        self._get(
            names, [self._actors[name].serve.remote(self.spec, self._servers and name[0] != "chief") for name in names]
        )
        for name in names:
            self._lives[name] = self._actors[name].stay.remote()

    def _get(self, names: list, refs: list) -> list:
        """The values, or at once an error that says which task does not start and why."""
        import time

        import weft

        deadline = time.monotonic() + self._timeout
        pending, values = dict(zip(refs, names)), {}
        while pending:
            done, late = weft.wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                raise TfClusterError(
                    f"{_named(pending[late[0]])} was not up after {self._timeout:g} s. Free resources or give more "
                    f"time (timeout=).\n{weft.explain(late[0])}"
                )
            name = pending.pop(done[0])
            try:
                values[name] = weft.get(done[0])
            except TfClusterError as error:
                raise TfClusterError(str(error).partition("\n")[0]) from None
            except WeftError as error:
                raise TfClusterError(f"{_named(name)} cannot start: {error}") from error
        return [values[name] for name in names]

    def _needed(self) -> list:
        """The tasks without which the others cannot go on: workers come and go where there are ps."""
        return [name for name in self._actors if name[0] != "worker" or "ps" not in self._counts]

    def _watch(self) -> None:
        import weft

        for name, actor in self._actors.items():
            others = [(self._processes[peer], self._actors[peer]) for peer in self._needed() if peer != name]
            with contextlib.suppress(weft.ActorError):  # that one is dead, and may be replaced next
                weft.get(actor.watch.remote(others))

    def _check_task(self, job: str, index: int) -> None:
        if not self._counts:
            raise TfClusterError("this TensorFlow cluster has been shut down; make another one with tf_cluster")
        if job not in self._counts:
            raise ValueError(f"this cluster has no job {job!r}, but {', '.join(map(repr, self._counts))}")
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"index must be an int, not {index!r}")
        if not 0 <= index < self._counts[job]:
            raise ValueError(f"the job {job!r} has the tasks 0 to {self._counts[job] - 1}, not {index}")


class _TfServer:
    """The actor. User functions run in threads, so that it can answer and notice deaths meanwhile.

    A session that waits for a dead ps waits for ever, inside TensorFlow, and cannot be interrupted there. Its thread is
    left behind then: the call fails, and the process can be replaced.
    """

    def __init__(self, job, index):
        self._job, self._index = job, index
        self._reserved: list = []
        self._server = None
        self._spec: dict = {}
        self._watchers: list = []
        self._loss: Any = None  # a future, whose result says which process has been lost

    async def announce(self, ports, seconds):
        import importlib.util
        import os
        import sys

        import weft

        name = _named((self._job, self._index))
        if importlib.util.find_spec("tensorflow") is None:
            raise TfClusterError(
                f"{name} cannot start: TensorFlow is not installed for {sys.executable} on {_own_address()}. Install "
                "it there: pip install tensorflow"
            )
        self._reserved = await _reserve(ports, seconds, f"{name} cannot start")
        port = self._reserved[0].getsockname()[1]
        return f"{_own_address()}:{port}", weft.get_runtime_context().get_node_id(), os.getpid()

    async def serve(self, spec, with_server):
        import asyncio
        import os

        self._spec = spec
        os.environ["TF_CONFIG"] = _tf_config(spec, self._job, self._index)
        os.environ["TF_GRPC_REUSE_PORT"] = "true"  # the server shares the port with the socket that keeps it
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        if with_server:
            await asyncio.get_running_loop().run_in_executor(None, self._start)

    def _start(self):
        import tensorflow as tf

        if not hasattr(getattr(tf, "distribute", None), "Server"):
            raise TfClusterError(
                f"{_named((self._job, self._index))} cannot start: TensorFlow {tf.__version__} has no "
                "tf.distribute.Server. Install TensorFlow 2: pip install -U tensorflow"
            )
        try:
            self._server = tf.distribute.Server(self._spec, job_name=self._job, task_index=self._index)
        except tf.errors.OpError as error:
            raise TfClusterError(
                f"{_named((self._job, self._index))} cannot serve at {self._spec[self._job][self._index]}: "
                f"{error.message}. If another process has taken the port, make the cluster again"
            ) from None

    async def answer(self):
        pass

    async def stay(self):
        import asyncio

        await asyncio.get_running_loop().create_future()

    async def watch(self, others):
        import asyncio

        for watcher in self._watchers:
            watcher.cancel()
        self._loss = asyncio.get_running_loop().create_future()
        self._watchers = [asyncio.ensure_future(self._watch(*other, self._loss)) for other in others]

    async def _watch(self, process, actor, loss):
        import weft

        try:
            await actor.stay.remote()
        except weft.ActorError as error:
            if not loss.done():
                loss.set_result(_lost(process, _reason(error)))

    async def run(self, function, *arguments):
        import asyncio
        import threading

        loop = asyncio.get_running_loop()
        loss, ended = self._loss, loop.create_future()
        if loss.done():
            raise TfClusterError(loss.result())
        task = TfTask(self._job, self._index, self._spec, self._server)

        def settle(result, error):
            if not ended.done():
                ended.set_exception(error) if error is not None else ended.set_result(result)

        def call():
            result, error = None, None
            try:
                result = function(task, *arguments)
            except StopIteration as stop:  # a future refuses it
                error = RuntimeError(f"the function raised StopIteration: {stop}")
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=call, name="tf", daemon=True).start()
        await asyncio.wait({ended, loss}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and ended.exception() is not None and _is_lost_connection(ended.exception()):
            await asyncio.wait({loss}, timeout=_NOTICE_SECONDS)
        if not loss.done() or (ended.done() and ended.exception() is None):
            return ended.result()
        raise TfClusterError(loss.result()) from (ended.exception() if ended.done() else None)


def _is_lost_connection(error) -> bool:
    import sys

    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))


def _reason(error: WeftError) -> str:
    """How the process ended, without what the error says of the call by which it was noticed."""
    text = str(error).partition("\n")[0]
    return text.partition("its actor is dead: ")[2].partition(". The call")[0] or text


def _named(name: tuple) -> str:
    return f"{name[0]} {name[1]} of the TensorFlow cluster"


def _lost(process: TfProcess, reason: str) -> str:
    lost = "the variables that it held are lost; " if process.job == "ps" else ""
    return (
        f"{_named((process.job, process.index))}, pid {process.pid} at {process.address}, has ended "
        f"({reason}), and the others need it: {lost}cluster.replace({process.job!r}, {process.index}) starts it again. "
        "Replace the workers too if they were in a session: it waits for the old one inside TensorFlow"
    )


def _cluster_spec(spec: dict) -> Any:
    import tensorflow as tf

    return tf.train.ClusterSpec(spec)


def _tf_config(spec: dict, job: str, index: int) -> str:
    import json

    return json.dumps({"cluster": spec, "task": {"type": job, "index": index}})


def _own_address() -> str:
    """Where the processes of this node are reached."""
    import weft

    own = weft.get_runtime_context().get_node_id()
    return next((node["NodeManagerAddress"] for node in weft.nodes() if node["NodeID"] == own), "127.0.0.1")


def _check_timeout(timeout: Any) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, but is {timeout!r}")


def _checked_ports(ports: Any) -> Optional[list]:
    if ports is None:
        return None
    try:
        wanted = list(ports)
    except TypeError:
        raise TypeError(f"ports must be several, such as range(2222, 2300), not {ports!r}") from None
    for port in wanted:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
            raise ValueError(f"a port is a number from 1 to 65535, not {port!r}")
    if not wanted:
        raise ValueError("ports is empty; leave it out for any free ports")
    return wanted


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


async def _reserve(ports: Optional[list], seconds: float, complaint: str) -> list:
    """Sockets that keep a port for this process while a server with SO_REUSEPORT may still take it; the first has it.

    ports: those that may be taken, None for any. seconds: how long to wait for one, if its last owner is just ending.
    """
    import asyncio
    import time

    deadline = time.monotonic() + seconds
    while True:
        for port in [0] if ports is None else ports:
            kept = _try_reserve(port)
            if kept:
                return kept
        if time.monotonic() >= deadline:
            wanted = f"port {ports[0]} is" if ports and len(ports) == 1 else f"all of the ports {_ranges(ports)} are"
            raise TfClusterError(
                f"{complaint}: {wanted if ports else 'every port is'} taken on {_own_address()}. Name others (ports=), "
                "leave ports out for any free one, or end what has it"
            )
        await asyncio.sleep(0.02)


def _try_reserve(port: int) -> list:
    import socket

    def bound(kind, address, *options):
        made = socket.socket(kind)
        try:
            for option in options:
                made.setsockopt(socket.SOL_SOCKET, option, 1)
            made.bind(address)
        except OSError:
            made.close()
            return None
        return made

    if port:
        # SO_REUSEADDR overlooks connections that linger, but no listener.
        probe = bound(socket.AF_INET, ("", port), socket.SO_REUSEADDR)
        if probe is None:
            return []
        probe.close()
    kept = bound(socket.AF_INET, ("", port), socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    if kept is None:
        return []
    # Between the two lines above another task of this machine may have kept the same port, as SO_REUSEPORT allows it. A
    # name that only one process can have decides, and goes with that process.
    lock = bound(socket.AF_UNIX, f"\0weft-tf-port-{kept.getsockname()[1]}")
    if lock is None:
        kept.close()
        return []
    return [kept, lock]


def _ranges(ports: Optional[list]) -> str:
    """Ports as people write them: 2222 to 2299, 3000."""
    runs: list = []
    for port in sorted(set(ports or [])):
        if runs and runs[-1][1] == port - 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    return ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in runs)
