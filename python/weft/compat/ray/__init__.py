"""Ray's names for weft: `import ray` under `weft run`, or `import weft.compat.ray as ray`.

Today's names and those of 2018 both work; WEFT_RAY_API=0.6 (or `weft run --ray-api=0.6`) chooses the meaning of 2018
where the two differ. docs/user/coming_from_ray.md says what is there and what behaves differently.
"""

from __future__ import annotations

import weft
from weft import ObjectRef, _core

from . import actor, exceptions, experimental, remote_function, services, util, worker
from ._calls import get, put, wait
from ._global_state import global_state
from ._level import IS_2018, RAY_VERSION
from ._session import init, shutdown
from ._translate import LOCAL_MODE, SCRIPT_MODE, SILENT_MODE, WORKER_MODE
from .actor import ActorHandle, method
from .remote_function import remote

__version__ = RAY_VERSION
__commit__ = f"weft {weft.__version__}"

PYTHON_MODE = LOCAL_MODE  # its name before 0.6
ObjectID = ObjectRef

if IS_2018:
    _core._print_references_as("ObjectID", 40)  # type: ignore[attr-defined]
    ObjectID.id = ObjectID.binary  # type: ignore[attr-defined]


def is_initialized() -> bool:
    """Whether this process has a session."""
    return weft.is_initialized()


def kill(actor, *, no_restart=True) -> None:
    """End an actor at once."""
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"ray.kill() takes the handle of an actor, not {type(actor).__name__}")  # as in Ray
    weft.kill(actor, no_restart=no_restart)


def cancel(object_ref, *, force=False, recursive=True) -> None:
    """Cancel the task or call that makes this object."""
    weft.cancel(object_ref, force=force, recursive=recursive)


def get_actor(name, namespace=None):
    """The handle of a named actor. Raises ValueError if there is none."""
    return weft.get_actor(name, namespace)


def get_gpu_ids() -> list:
    """The numbers of the GPUs that this task or actor may use."""
    return [int(gpu) for gpu in weft.get_gpu_ids()]


def get_runtime_context():
    """Who is running: ids, names and resources of job, node, task and actor."""
    return weft.get_runtime_context()


def cluster_resources() -> dict:
    """All resources of the session."""
    return weft.cluster_resources()


def available_resources() -> dict:
    """Those that nobody uses at the moment."""
    return weft.available_resources()


def nodes() -> list:
    """The machines of the session."""
    return weft.nodes()


def timeline(filename=None):
    """What ran when, in Chrome's format: written to a file, or returned as a list of events."""
    return global_state.chrome_tracing_dump(filename)


# ---- 2018 -----------------------------------------------------------------------------------------------------------


def get_webui_url() -> str:
    """There is no web interface yet."""
    return ""


def error_info() -> list:
    """Errors that were pushed to the driver: weft raises them where the result is asked for, and pushes none."""
    return []


def register_custom_serializer(cls, use_pickle=False, use_dict=False, serializer=None, deserializer=None, **_) -> None:
    """Use these functions for instances of the class. Without them there is nothing to do: everything is pickled."""
    if serializer is not None:
        util.register_serializer(cls, serializer=serializer, deserializer=deserializer)


def profile(event_type, extra_data=None):
    """A context manager that does nothing: weft records every task, but no spans of its own inside them."""
    import contextlib

    return contextlib.nullcontext()


_NOT_HERE = "is not in weft's version of Ray's interface (docs/user/coming_from_ray.md has the list)"


def __getattr__(name: str):
    raise AttributeError(f"ray.{name} {_NOT_HERE}")


__all__ = [
    "LOCAL_MODE",
    "ObjectID",
    "ObjectRef",
    "PYTHON_MODE",
    "SCRIPT_MODE",
    "SILENT_MODE",
    "WORKER_MODE",
    "__version__",
    "actor",
    "available_resources",
    "cancel",
    "cluster_resources",
    "error_info",
    "exceptions",
    "experimental",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "get_webui_url",
    "global_state",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "profile",
    "put",
    "register_custom_serializer",
    "remote",
    "remote_function",
    "services",
    "shutdown",
    "timeline",
    "util",
    "wait",
    "worker",
]
