"""weft: ordinary functions as tasks, and classes as actors, on all cores, passing objects through shared memory.

import weft

@weft.remote
def square(x):
    return x * x

print(weft.get([square.remote(i) for i in range(4)]))
"""

from __future__ import annotations

# Importing weft must stay cheap (it is part of every program's start): nothing here or in the modules below may
# import more than the interpreter has loaded already. What needs more imports it where it is used.
from . import exceptions
from ._actor import ActorClass, TypedActor, cancel, exit_actor, get_actor, kill, list_named_actors, method
from ._api import Context, empty, init, is_initialized, shutdown
from ._completion import as_completed, map_unordered
from ._core import ActorHandle, ObjectRef, RemoteFunction, explain, get, put, wait
from ._remote_function import remote
from ._runtime_context import (
    RuntimeContext,
    available_resources,
    cluster_resources,
    get_gpu_ids,
    get_runtime_context,
    nodes,
)
from .exceptions import (
    ActorDiedError,
    ActorError,
    ActorUnavailableError,
    AuthenticationError,
    DeadlockError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    OwnerDiedError,
    PendingCallsLimitExceeded,
    ReconstructionFailedError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    TaskError,
    UnschedulableError,
    VersionMismatchError,
    WeftError,
    WorkerCrashedError,
)

try:
    from ._version import __version__  # type: ignore[import-not-found,unused-ignore]  # written by the build from the file VERSION
except ImportError:
    __version__ = "0+unbuilt"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import cpp, state, testing, util
    from ._timeline import timeline, timeline_page


def __getattr__(name: str):
    """What is needed seldom is imported when it is first asked for."""
    if name in ("cpp", "state", "testing", "util"):
        import importlib

        return importlib.import_module("." + name, __name__)
    if name in ("timeline", "timeline_page"):
        from . import _timeline

        return getattr(_timeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ActorClass",
    "ActorDiedError",
    "ActorError",
    "ActorHandle",
    "ActorUnavailableError",
    "AuthenticationError",
    "Context",
    "DeadlockError",
    "GetTimeoutError",
    "NodeDiedError",
    "ObjectLostError",
    "ObjectRef",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "ReconstructionFailedError",
    "RemoteFunction",
    "RuntimeContext",
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskError",
    "TypedActor",
    "UnschedulableError",
    "VersionMismatchError",
    "WeftError",
    "WorkerCrashedError",
    "__version__",
    "as_completed",
    "available_resources",
    "cancel",
    "cluster_resources",
    "cpp",
    "empty",
    "exceptions",
    "exit_actor",
    "explain",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "list_named_actors",
    "map_unordered",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "state",
    "testing",
    "timeline",
    "timeline_page",
    "util",
    "wait",
]
