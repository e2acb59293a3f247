"""Exceptions under Ray's names, today's and those of 2018.

What weft raises are its own classes (weft.exceptions) under another name. The classes defined here are never raised:
they exist for programs that name them in an `except`.
"""

from __future__ import annotations

from weft.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    AuthenticationError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    OwnerDiedError,
    PendingCallsLimitExceeded,
    RuntimeEnvSetupError,
    TaskCancelledError,
    WorkerCrashedError,
)
from weft.exceptions import ActorError as RayActorError
from weft.exceptions import ReconstructionFailedError as ObjectReconstructionFailedError
from weft.exceptions import TaskError as RayTaskError
from weft.exceptions import UnschedulableError as ActorUnschedulableError
from weft.exceptions import UnschedulableError as TaskUnschedulableError
from weft.exceptions import WeftError as RayError

LocalRayletDiedError = NodeDiedError


class _Cause:
    """`error.cause`: the exception that the task raised. What weft raises is an instance of its class already.
    Defines no __set__, so that an attribute of the user's own exception by this name goes first."""

    def __get__(self, error, cls=None):
        return self if error is None else error


RayTaskError.cause = _Cause()  # type: ignore[attr-defined]

# 2018
RayGetError = RayTaskError
RayWorkerError = WorkerCrashedError
UnreconstructableError = ObjectLostError


class RaySystemError(RayError):
    """Never raised by weft."""


class UserCodeException(RayError):
    """Never raised by weft."""


class UnserializableException(RayError):
    """Never raised by weft."""


class CrossLanguageError(RayError):
    """Never raised by weft."""


class AsyncioActorExit(RayError):
    """Never raised by weft."""


class RpcError(RayError):
    """Never raised by weft."""


class PlasmaObjectNotAvailable(RayError):
    """Never raised by weft."""


class ActorPlacementGroupRemoved(RayError):
    """Never raised by weft."""


class TaskPlacementGroupRemoved(RayError):
    """Never raised by weft."""


class ObjectFreedError(ObjectLostError):
    """Never raised by weft."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Never raised by weft."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Never raised by weft."""


class ActorAlreadyExistsError(ValueError, RayError):
    """Never raised by weft: a name that is taken is a ValueError."""


class ActorHandleNotFoundError(ValueError, RayError):
    """Never raised by weft."""


__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AsyncioActorExit",
    "AuthenticationError",
    "CrossLanguageError",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "RayActorError",
    "RayError",
    "RayGetError",
    "RaySystemError",
    "RayTaskError",
    "RayWorkerError",
    "ReferenceCountingAssertionError",
    "RpcError",
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "UnreconstructableError",
    "UnserializableException",
    "UserCodeException",
    "WorkerCrashedError",
]
