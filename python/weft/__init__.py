"""weft: ordinary functions as tasks on all cores, passing objects through shared memory.

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
from ._api import Context, empty, init, is_initialized, shutdown
from ._core import ObjectRef, RemoteFunction, explain, get, put, wait
from ._remote_function import remote
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

__all__ = [
    "ActorDiedError",
    "ActorError",
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
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskError",
    "UnschedulableError",
    "VersionMismatchError",
    "WeftError",
    "WorkerCrashedError",
    "__version__",
    "empty",
    "exceptions",
    "explain",
    "get",
    "init",
    "is_initialized",
    "put",
    "remote",
    "shutdown",
    "wait",
]
