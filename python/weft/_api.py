"""The session: init, shutdown, and what they need to know about this machine and interpreter.

One session per process at a time. `_lock` guards starting and stopping; the C++ core itself knows whether it runs.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock  # threading's own, without the import of threading before it is needed

from . import _core
from ._options import check_bytes, check_name, check_resource_amount, check_resources, nearest

__all__ = [
    "Context",
    "auto_init",
    "empty",
    "init",
    "is_initialized",
    "local_mode",
    "namespace",
    "set_namespace",
    "shutdown",
]

_PROGRAM = "WEFT_PROGRAM"  # path of the weft program, for builds that are not installed
RUN_ADDRESS = "WEFT_RUN_ADDRESS"  # the cluster that `weft run --address` has chosen for a program
_OUTPUT_SECONDS = 2.0  # after the end of the session, for output of workers that is still to be printed

# Arguments of later versions with the values that mean "not wanted".
_NOT_YET = {
    "labels": (None, {}),
    "runtime_env": (None, {}),
    "include_dashboard": (None, False),
}
_ARGUMENTS = (
    "address",
    "num_cpus",
    "num_gpus",
    "resources",
    "object_store_memory",
    "ignore_reinit_error",
    "log_to_driver",
    "logging_level",
    "namespace",
    "local_mode",
    "preload",
    *_NOT_YET,
)

_lock = RLock()
_context = None
_namespace = ""  # of this session, also in its workers
_local_mode = None  # the module weft._local_mode while the session is one
_exit_hook_installed = False
_fork_hooks_installed = False
_forked = False  # this process is a fork of one that had a session


class Context:
    """What `init` returns. `with weft.init(): ...` shuts down at the end."""

    def __init__(self, num_cpus: float, resources: dict, object_store_memory: int):
        self.num_cpus = num_cpus
        """CPUs that tasks can use at the same time."""
        self.resources = resources
        """All resources by name, "CPU" included."""
        self.object_store_memory = object_store_memory
        """Bytes of shared memory that objects may take; of a cluster, on this node."""

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_) -> None:
        if _context is self:
            shutdown()

    def __repr__(self):
        state = "" if _context is self else ", ended"
        return f"<weft session: {self.num_cpus:g} CPUs, {self.object_store_memory / 1e9:.1f} GB of objects{state}>"


def init(
    address=None,
    *,
    num_cpus=None,
    num_gpus=None,
    resources=None,
    object_store_memory=None,
    ignore_reinit_error=False,
    log_to_driver=True,
    logging_level=None,
    namespace=None,
    local_mode=False,
    preload=None,
    **others,
) -> Context:
    """Start weft on this machine, a private session that ends with this program, or join a cluster.

    address: None (WEFT_ADDRESS, or else a private session), "local" (a private session), "auto" (the cluster that this
    machine is a node of), or "host:port" of a cluster's head. A cluster's resources are those of its nodes, so the
    next four are for private sessions. num_cpus: how many CPUs tasks may use (default: those this process may use, by
    affinity and cgroup; a quota of 1.5 CPUs counts as 1). num_gpus, resources: what tasks can ask for besides.
    object_store_memory: bytes of shared memory for objects (default: 30 % of what the machine or cgroup allows).
    ignore_reinit_error: if weft runs already, return that session instead of raising. log_to_driver: show what workers
    print. logging_level: of the logger "weft". namespace: where names of actors belong unless another is given.
    local_mode: run tasks and calls of actors inside `.remote(...)`, one after the other, in this process, for
    debugging. preload: names of modules that take long to import, such as ["torch"]; they are imported once, and
    workers are forked with them (default: WEFT_PRELOAD, separated by commas).
    """
    global _context, _namespace, _local_mode
    _check_others(others)
    chosen_by_run = address is None and os.environ.get(RUN_ADDRESS)
    address = _check_address(address)
    if address:
        own = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources}
        own["object_store_memory"] = object_store_memory
        if chosen_by_run:
            _warn_of_nodes(address, own)
            object_store_memory = None
        else:
            _check_nothing_of_nodes(address, own)
        total = {}
    else:
        total = _check_resources(num_cpus, num_gpus, resources)
    store = 0 if object_store_memory is None else check_bytes("object_store_memory", object_store_memory)
    if object_store_memory is not None and store == 0:
        raise ValueError("object_store_memory must be at least 1 byte; leave it out for the default")
    flags = {"ignore_reinit_error": ignore_reinit_error, "log_to_driver": log_to_driver, "local_mode": local_mode}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
    space = "" if namespace is None else check_name("namespace", namespace)
    modules = _chosen_modules(preload)
    if logging_level is not None:
        _set_logging_level(logging_level)

    with _lock:
        if _forked:
            raise RuntimeError(
                "this process was forked from one that uses weft and cannot start a session of its own; call weft in "
                "the parent, or start this process by multiprocessing's 'spawn' method"
            )
        if _core.is_started():
            if ignore_reinit_error and _context is not None:
                return _context
            raise RuntimeError(
                "weft is initialised already in this process; call weft.shutdown() first, "
                "or pass ignore_reinit_error=True to go on with the present session"
            )
        _namespace = space
        started = _start(address, total, store, log_to_driver, [] if local_mode else modules)
        if local_mode:
            from . import _local_mode as module

            module.start()
            _local_mode = module
        if address:
            from ._runtime_context import cluster_resources

            total = cluster_resources()
        _context = Context(total.get("CPU", 0.0), total, int(started.get("object_store_memory", store)))
        return _context


def shutdown() -> None:
    """End the session: workers, daemon and objects are gone when this returns. Does nothing if there is none."""
    global _context, _namespace, _local_mode
    with _lock:
        was_running = _context is not None
        _context = None
        if _local_mode is not None:
            _local_mode.stop()
            _local_mode = None
        _core.stop()
        if was_running:
            _namespace = ""
    if was_running:
        # What workers printed last is on its way through the events thread.
        sys.modules["weft._events"].join(_OUTPUT_SECONDS)


def is_initialized() -> bool:
    """Whether this process has a session: it called init, or is a worker."""
    return _core.is_started()


def namespace() -> str:
    """Where names of actors belong unless another namespace is given."""
    return _namespace


def set_namespace(name: str) -> None:
    """In a worker: that of its driver."""
    global _namespace
    _namespace = name


def local_mode():
    """The module weft._local_mode if the session was started so, else None."""
    return _local_mode


def auto_init() -> None:
    """Initialise with defaults because an API call came before `init`. Called by C++."""
    with _lock:
        if not _core.is_started():
            init()


def empty(shape, dtype="float64"):
    """A NumPy array in shared memory, to be filled and then given to `put`, which copies nothing and makes it
    read-only. Its contents are undefined until written."""
    try:
        import numpy
    except ImportError:
        raise ImportError("weft.empty makes NumPy arrays, and NumPy is not installed: pip install numpy") from None
    dimensions = _check_shape(shape)
    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"dtype must not hold Python objects, which cannot be in shared memory; not {dtype}")
    nbytes = dtype.itemsize
    for dimension in dimensions:
        nbytes *= dimension
    if nbytes == 0:
        return numpy.empty(dimensions, dtype)
    check_bytes("the size of the array in bytes", nbytes)
    return numpy.ndarray(dimensions, dtype, _core.empty(len(dimensions), nbytes))


# ---- checks ---------------------------------------------------------------------------------------------------------


def _check_others(others: dict) -> None:
    for name, value in others.items():
        if name not in _NOT_YET:
            raise TypeError(f"init() has no argument {name!r}{nearest(name, _ARGUMENTS)}")
        if not any(value is harmless or value == harmless for harmless in _NOT_YET[name]):
            raise NotImplementedError(f"init({name}=...) is not yet available in this version")


def _check_address(address) -> str:
    """Of a cluster; "" for a private session."""
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address must be a string or None, not {address!r}")
    if address is not None:
        return check_address(address, f"address={address!r}")
    wanted = os.environ.get("WEFT_ADDRESS") or "local"
    return check_address(wanted, f"the environment variable WEFT_ADDRESS={wanted!r}")


def check_address(wanted: str, given_by: str) -> str:
    """The same for an address that was given as text; errors name where it came from."""
    if wanted == "local":
        return ""
    host, colon, port = wanted.rpartition(":")
    if wanted != "auto" and not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f'{given_by} must be "auto", "local" or "host:port"')
    return wanted


def _check_nothing_of_nodes(address: str, given: dict) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ValueError(
            f"{', '.join(names)}: the cluster {address!r} has what its nodes have; say it where they are started "
            f"(weft start --{names[0].replace('_', '-')}=...), or leave the address out for a private session"
        )


def _warn_of_nodes(address: str, given: dict) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        import warnings

        from ._errors import user_stacklevel

        warnings.warn(
            f"init({', '.join(f'{name}=...' for name in names)}) has no effect under weft run --address={address}: the "
            "cluster has what its nodes have",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


def _check_resources(num_cpus, num_gpus, resources) -> dict:
    total = {} if resources is None else check_resources("resources", resources)
    total["CPU"] = float(_core.allowed_cpus()) if num_cpus is None else check_resource_amount("num_cpus", num_cpus)
    if total["CPU"] != int(total["CPU"]):
        raise ValueError(f"num_cpus must be a whole number, not {num_cpus!r} (tasks may take fractions of a CPU)")
    if num_gpus is not None:
        gpus = check_resource_amount("num_gpus", num_gpus)
        if gpus != int(gpus):
            raise ValueError(f"num_gpus must be a whole number, not {num_gpus!r} (tasks may take fractions of a GPU)")
        total["GPU"] = gpus
    return total


def _chosen_modules(preload) -> list:
    if preload is None and not os.environ.get("WEFT_PRELOAD"):
        return []
    from . import _preload

    return _preload.chosen(preload)


def _check_shape(shape) -> tuple:
    items = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    checked = []
    for item in items:
        if isinstance(item, bool) or not hasattr(type(item), "__index__"):
            raise TypeError(f"shape must be an integer or a tuple of integers, not {shape!r}")
        if item.__index__() < 0:
            raise ValueError(f"shape must not hold negative numbers, but is {shape!r}")
        checked.append(item.__index__())
    return tuple(checked)


def _set_logging_level(level) -> None:
    import logging

    try:
        logging.getLogger("weft").setLevel(level)
    except (TypeError, ValueError):
        raise ValueError(f'logging_level must be a level of the logging module such as "INFO", not {level!r}') from None


# ---- starting -------------------------------------------------------------------------------------------------------


def _start(address: str, resources: dict, object_store_memory: int, log_to_driver: bool, preload: list) -> dict:
    from . import _events, _explain, _functions, _worker

    # Names and values travel as UTF-8; what is not UTF-8 (surrogates in Python's eyes) cannot, and stays behind.
    environment = {name: value for name, value in os.environ.items() if _worker.is_text(name + value)}
    environment["WEFT_DRIVER"] = _worker.describe_driver(_namespace)
    _functions.set_worker_path(sys.path + _worker.absolute_path(sys.path))
    started = _core.start(
        {
            "daemon": _program(),
            "address": address,
            "resources": resources,
            "object_store_memory": object_store_memory,
            "worker_command": _worker_command(),
            "environment": [f"{name}={value}" for name, value in environment.items()],
            "working_directory": _working_directory(),
            "forward_output": log_to_driver,
            "preload": preload,
            "notice_after": _explain.long_wait_seconds(),
        }
    )
    install_fork_hooks()
    _install_exit_hook()
    _events.start()
    return started


def _install_exit_hook() -> None:
    global _exit_hook_installed
    if not _exit_hook_installed:
        import atexit

        atexit.register(_shutdown_at_exit)
        _exit_hook_installed = True


def install_fork_hooks() -> None:
    """What is to happen in a fork of this process, a driver or a worker."""
    global _fork_hooks_installed
    if not _fork_hooks_installed:
        os.register_at_fork(before=_note_fork, after_in_child=_forget_after_fork)
        _fork_hooks_installed = True


def _program() -> str:
    path = os.environ.get(_PROGRAM) or os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", "weft")
    if not os.access(path, os.X_OK):
        raise RuntimeError(
            f"the weft program is not at {path}; reinstall weft, or say where it is in the environment variable "
            f"{_PROGRAM}"
        )
    return path


def _worker_command() -> list:
    """Starts a zygote: this interpreter, with the options that this one was started with."""
    from ._worker import ZYGOTE_PROGRAM

    command = [sys.executable or "python3"]
    flags = sys.flags
    for count, letter in ((flags.optimize, "O"), (flags.bytes_warning, "b"), (flags.dont_write_bytecode, "B")):
        if count:
            command.append("-" + letter * int(count))
    for flag, is_set in (("-E", flags.ignore_environment), ("-s", flags.no_user_site), ("-S", flags.no_site)):
        if is_set:
            command.append(flag)
    for option in sys.warnoptions:
        command.append(f"-W{option}")
    for option, value in sys._xoptions.items():
        if option not in ("importtime", "frozen_modules"):
            command.append(f"-X{option}" if value is True else f"-X{option}={value}")
    return [*command, "-c", ZYGOTE_PROGRAM]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # it was removed


def _shutdown_at_exit() -> None:
    try:
        shutdown()
    except Exception:
        pass  # C++ ends the daemon in any case when this process goes


_had_session = False


def _note_fork() -> None:
    global _had_session
    _had_session = _core.is_started()


def _forget_after_fork() -> None:
    """In a forked child there is no session: C++ raises for every call, and nothing here may act for the parent."""
    global _context, _forked, _local_mode, _lock
    _context = _local_mode = None
    _forked = _forked or _had_session
    _lock = RLock()
    events = sys.modules.get("weft._events")
    if events is not None:
        events.forget_after_fork()
