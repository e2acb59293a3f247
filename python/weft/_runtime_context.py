"""Where this code runs, and what the session has: `get_runtime_context`, `nodes`, `cluster_resources`, ...

Everything is asked of C++ when it is asked for; nothing is kept here.
"""

from __future__ import annotations

from . import _api, _core

__all__ = [
    "RuntimeContext",
    "available_resources",
    "cluster_resources",
    "current_call",
    "get_gpu_ids",
    "get_runtime_context",
    "nodes",
]


def current_call() -> dict | None:
    """The task or call of an actor in which this code runs; None elsewhere."""
    local = _api.local_mode()
    if local is not None:
        return local.current_call()
    return _core.current_call()


class RuntimeContext:
    """The task, actor, process and node in which this code runs. All ids are hexadecimal strings."""

    def get_job_id(self) -> str:
        """The driver whose program this is."""
        return _process()["job_id"]

    def get_node_id(self) -> str:
        """The machine."""
        return _process()["node_id"]

    def get_worker_id(self) -> str:
        """The process, driver or worker."""
        return f"{_process()['process']:016x}"

    def get_task_id(self) -> str | None:
        """The task, or call of an actor; None in the driver."""
        call = current_call()
        return None if call is None else call["task_id"]

    def get_task_name(self) -> str | None:
        """The name of the task: its function's, unless it was given one; None in the driver."""
        call = current_call()
        return None if call is None else call["name"]

    def get_task_function_name(self) -> str | None:
        """The same as get_task_name, unless a name was given."""
        return self.get_task_name()

    def get_task_attempt(self) -> int | None:
        """0 at the first attempt, 1 at the first retry, and so on; None in the driver."""
        call = current_call()
        return None if call is None else call["attempt"]

    def get_actor_id(self) -> str | None:
        """The actor to which this code belongs; None elsewhere."""
        call = current_call()
        return None if call is None else call["actor_id"]

    def get_actor_name(self) -> str | None:
        """Its name; "" if it has none. None outside of actors."""
        if self.get_actor_id() is None:
            return None
        settings = _actor_settings()
        return (settings.name or "") if settings is not None else ""

    @property
    def current_actor(self):
        """A handle of the actor to which this code belongs."""
        local = _api.local_mode()
        handle = local.current_handle() if local is not None else _core.current_actor()
        if handle is None:
            raise RuntimeError("current_actor was asked for outside of an actor")
        return handle

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor to which this code belongs has been restarted."""
        call = current_call()
        if call is None or call["actor_id"] is None:
            raise RuntimeError("was_current_actor_reconstructed was asked for outside of an actor")
        return call["incarnation"] > 1

    @property
    def namespace(self) -> str:
        """Where names of actors are looked up unless another namespace is given."""
        return _api.namespace()

    def get_namespace(self) -> str:
        """The same as `namespace`."""
        return _api.namespace()

    def get_assigned_resources(self) -> dict:
        """What this task or actor holds, by name; {} in the driver."""
        call = current_call()
        return {} if call is None else dict(call["resources"])

    def get_accelerator_ids(self) -> dict:
        """The numbers of the accelerators assigned to this task or actor, by kind, as text."""
        return {"GPU": [str(number) for number in get_gpu_ids()]}

    @property
    def is_worker(self) -> bool:
        """Whether this process is a worker."""
        return bool(_process()["is_worker"])

    def get(self) -> dict:
        """All of it in a dict."""
        described = {
            "job_id": self.get_job_id(),
            "node_id": self.get_node_id(),
            "worker_id": self.get_worker_id(),
            "namespace": self.namespace,
        }
        call = current_call()
        if call is not None:
            described["task_id"] = call["task_id"]
            described["task_name"] = call["name"]
            if call["actor_id"] is not None:
                described["actor_id"] = call["actor_id"]
                described["actor_name"] = self.get_actor_name()
        return described

    def __repr__(self):
        return f"RuntimeContext({', '.join(f'{name}={value!r}' for name, value in self.get().items())})"


_context = RuntimeContext()


def get_runtime_context() -> RuntimeContext:
    """Where this code runs: the ids and names of driver, node, process, task and actor."""
    _started()
    return _context


def get_gpu_ids() -> list:
    """The numbers of the GPUs assigned to this task or actor; [] in the driver, or if it asked for none."""
    call = current_call()
    return [] if call is None else [number for number, _ in call["gpus"]]


def nodes() -> list:
    """The nodes of the cluster, one of a private session, in the order in which they came; also those that have gone.

    Of each a dict with "NodeID", "NodeName", "Alive", "IsHead", "NodeManagerAddress" and "NodeManagerPort" (where other
    nodes reach it), "Resources" and "Available" by name (of one that has gone: {}), "Labels", and "DeathReason".
    """
    _started()
    found = []
    for node in _core.nodes():
        host, _, port = node["address"].rpartition(":")
        found.append(
            {
                "NodeID": node["node_id"],
                "Alive": node["alive"],
                "NodeManagerHostname": node["name"],
                "NodeName": node["name"],
                "NodeManagerAddress": host or "127.0.0.1",
                "NodeManagerPort": int(port or 0),
                "IsHead": node["head"],
                "Resources": node["total"] if node["alive"] else {},
                "Available": node["available"] if node["alive"] else {},
                "Labels": node["labels"],
                "DeathReason": node["why"],
            }
        )
    return found


def cluster_resources() -> dict:
    """All resources of the living nodes, by name."""
    _started()
    return _sum("total")


def available_resources() -> dict:
    """The unused part of it, as far as the head has heard; a resource that is used up is left out."""
    _started()
    return _sum("available")


def _sum(which: str) -> dict:
    total: dict = {}
    for node in _core.nodes():
        if node["alive"]:
            for name, amount in node[which].items():
                total[name] = total.get(name, 0.0) + amount
    # Amounts are counted in 1/10,000; sums of their fractions have no more digits.
    return {name: round(amount, 4) for name, amount in total.items() if amount > 0}


def _started() -> None:
    if not _core.is_started():
        _api.auto_init()


def _process() -> dict:
    _started()
    return _core.process_info()


def _actor_settings():
    from . import _actor

    local = _api.local_mode()
    return local.current_settings() if local is not None else _actor.own_settings
