"""init, shutdown, and what init returns."""

from __future__ import annotations

import os
import sys

import weft
from weft import _core, _preload
from weft.compat._finder import VARIABLE

from ._level import IS_2018, RAY_VERSION
from ._translate import init_arguments

__all__ = ["RayContext", "init", "shutdown"]


class RayContext:
    """What today's `ray.init` returns: a context, and a mapping of addresses."""

    def __init__(self, context):
        self._context = context
        self.dashboard_url = ""
        self.python_version = "{}.{}.{}".format(*sys.version_info[:3])
        self.ray_version = RAY_VERSION
        self.ray_commit = f"weft {weft.__version__}"
        self.address_info = _address_info()

    def __getitem__(self, key):
        return self.address_info[key]

    def __len__(self):
        return len(self.address_info)

    def __iter__(self):
        return iter(self.address_info)

    def disconnect(self) -> None:
        shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self._context.__exit__(*exc)

    def __repr__(self):
        return f"RayContext({self._context!r})"


def _address_info() -> dict:
    """Where this node is, and the cluster if there is one: its head is what `address=` and `redis_address=` take. What
    weft does not have, such as sockets with names, is None."""
    nodes = weft.nodes()
    node_id = weft.get_runtime_context().get_node_id()
    own = next((node for node in nodes if node["NodeID"] == node_id), None)
    # A node of a private session has no port: nobody else can reach it.
    head = next((node for node in nodes if node["IsHead"] and node["Alive"] and node["NodeManagerPort"]), None)
    cluster = f"{head['NodeManagerAddress']}:{head['NodeManagerPort']}" if head else None
    return {
        "node_ip_address": own["NodeManagerAddress"] if own else "127.0.0.1",
        "redis_address": cluster,
        "object_store_address": None,
        "raylet_socket_name": None,
        "webui_url": "",
        "session_dir": None,
        "address": cluster or "local",
        "gcs_address": cluster,
        "node_id": node_id,
    }


_MOST_WORKERS = 16  # that are waited for
_PATIENCE = 5.0  # seconds
_READY = (2, 3, 4)  # idle, busy, blocked: STAGES of weft._observe


def init(address=None, **arguments):
    """Start a session. Takes the arguments of today's and of 2018's ray.init; some have no effect (the tables are in
    docs/user/coming_from_ray.md). Returns when the first workers are there: programs that measure what Ray does take
    for granted that they are, and that those have NumPy."""
    translated = init_arguments({"address": address, **arguments})
    was_running = weft.is_initialized()
    preload = _preload.chosen(None)
    if VARIABLE in os.environ and "numpy" in sys.modules and "numpy" not in preload:
        preload.append("numpy")
    context = weft.init(**translated, preload=preload)
    if not was_running and not translated.get("local_mode"):
        _await_workers(min(_core.process_info()["cpus"], _MOST_WORKERS))
    return _address_info() if IS_2018 else RayContext(context)


def _await_workers(count: int) -> None:
    """Wait until so many workers are ready, but not for ever: the session works without them."""
    import time

    from weft import _observe

    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            processes = _observe.observe()["processes"]
        except weft.WeftError:
            continue  # the machine is busy, and the daemon did not answer in time
        if sum(_observe.ROLES.get(p["role"]) == "worker" and p["stage"] in _READY for p in processes) >= count:
            return
        time.sleep(0.005)


def shutdown(*_, **__) -> None:
    """End the session. Ray's arguments say how patiently; here everything is gone when this returns."""
    weft.shutdown()
