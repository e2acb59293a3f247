# Everything that weft raises for errors at run time; the C++ API has the same tree.
#
#   WeftError
#   ├── TaskError                       the task's own code raised; also an instance of the class it raised
#   ├── TaskCancelledError              the task was cancelled before it ended
#   ├── WorkerCrashedError              the process that ran the task died (exit, signal, kill -9)
#   ├── ActorError
#   │   ├── ActorDiedError              the actor is gone for good
#   │   └── ActorUnavailableError       the actor cannot be reached now, perhaps later
#   ├── ObjectLostError                 every copy of the object is gone
#   │   ├── OwnerDiedError              the process that owned the reference died
#   │   └── ReconstructionFailedError   the object was lost and could not be computed again
#   ├── ObjectStoreFullError            no room in shared memory, also after waiting
#   ├── OutOfDiskError                  no room on disk for spilled objects
#   ├── OutOfMemoryError                the worker was ended to save the machine from running out of memory
#   ├── NodeDiedError                   a machine is gone
#   ├── GetTimeoutError                 get(timeout=...) ran out; also a TimeoutError
#   ├── UnschedulableError              no machine can ever satisfy the request
#   ├── PendingCallsLimitExceeded       too many calls wait for this actor
#   ├── RuntimeEnvSetupError            the environment of a task or actor could not be made
#   ├── DeadlockError                   tasks or actors wait for each other in a circle
#   ├── AuthenticationError             a wrong or missing token
#   └── VersionMismatchError            the other side speaks another version of weft or Python
#
# Wrong arguments are not in the tree: they raise TypeError or ValueError, as everywhere in Python; a call that the
# present state does not allow raises RuntimeError.
"""The exceptions of weft. All of them can be pickled, and `except weft.WeftError` catches every one."""

from __future__ import annotations

__all__ = [
    "ActorDiedError",
    "ActorError",
    "ActorUnavailableError",
    "AuthenticationError",
    "DeadlockError",
    "GetTimeoutError",
    "NodeDiedError",
    "ObjectLostError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "ReconstructionFailedError",
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskError",
    "UnschedulableError",
    "VersionMismatchError",
    "WeftError",
    "WorkerCrashedError",
]


class WeftError(Exception):
    """The root of all exceptions that weft raises for errors at run time."""


class TaskError(WeftError):
    """The code of a task raised an exception.

    What `get` raises is an instance of the class that the task raised *and* of this one, so that both
    `except ValueError` and `except weft.TaskError` catch it. Its attributes and arguments are those of the original;
    the traceback of the worker is printed above it as its cause. An exception that cannot travel is raised as a
    plain TaskError that carries its type name, message and traceback as text.
    """

    # Set by weft on the instance; these are the values of a TaskError that was not filled in.
    function_name: str = ""
    """The name of the task's function."""
    pid: int = 0
    """The process in which it ran."""
    remote_traceback: str = ""
    """The traceback of the worker as text: the user's frames, causes and contexts included."""
    cause_type: str = ""
    """The full name of the class that was raised, "module.Class"."""


class TaskCancelledError(WeftError):
    """The task was cancelled before it ended."""


class WorkerCrashedError(WeftError):
    """The worker process died while it ran the task, and the task had no retries left."""


class ActorError(WeftError):
    """An actor could not run the call."""


class ActorDiedError(ActorError):
    """The actor is gone for good; no later call can succeed."""


class ActorUnavailableError(ActorError):
    """The actor cannot be reached now; a later call may succeed."""


class ObjectLostError(WeftError):
    """Every copy of the object is gone."""


class OwnerDiedError(ObjectLostError):
    """The process that owned the reference died, and with it the knowledge of where the object is."""


class ReconstructionFailedError(ObjectLostError):
    """The object was lost, and the task that made it could not be run again."""


class ObjectStoreFullError(WeftError):
    """Shared memory has no room for the object, even after waiting for others to be freed."""


class OutOfDiskError(WeftError):
    """The disk has no room for objects that should leave memory."""


class OutOfMemoryError(WeftError):
    """The worker was ended because the machine was about to run out of memory."""


class NodeDiedError(WeftError):
    """The machine that ran the task or held the object is gone."""


class GetTimeoutError(WeftError, TimeoutError):
    """`get(timeout=...)` ended before the value was there; the task goes on."""


class UnschedulableError(WeftError):
    """No machine has, or can ever have, the resources that the task asks for."""


class PendingCallsLimitExceeded(WeftError):
    """More calls wait for the actor than its `max_pending_calls` allows."""


class RuntimeEnvSetupError(WeftError):
    """The runtime environment of a task or actor could not be made."""


class DeadlockError(WeftError):
    """Tasks or actors wait for each other in a circle."""


class AuthenticationError(WeftError):
    """The other side did not accept our token, or showed none that we accept."""


class VersionMismatchError(WeftError):
    """The other side runs another version of weft or of Python."""
