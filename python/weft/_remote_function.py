"""`remote`: makes remote functions out of functions, and actor classes out of classes (weft._actor).

The calls themselves are C++ (weft._core.RemoteFunction).
"""

from __future__ import annotations

from . import _actor, _core
from ._options import TaskOptions, check_any

__all__ = ["rebuild", "refuse_direct_call", "remote", "with_options", "wrap"]

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # co_flags, as in inspect (which is slow to import)
_DEFAULT_OPTIONS = TaskOptions()
_MAX_COPIES = 32  # remembered per remote function


def remote(*args, **options):
    """Make a remote function or an actor class: `@weft.remote`, `@weft.remote(num_cpus=2)` or `weft.remote(function)`.

    Calling `f.remote(...)` then runs `f(...)` as a task in a worker process and returns an ObjectRef at once;
    `Class.remote(...)` makes an actor in a process of its own and returns its handle at once.

    Options of functions: num_cpus (1), num_gpus (0), resources ({}), memory (0, bytes), num_returns (1),
    max_retries (3), retry_exceptions (False), name (None). Of classes: num_cpus (1 to place, 0 for life), num_gpus,
    resources, memory, max_restarts (0), max_task_retries (0), retry_exceptions (False), max_concurrency (1; 1000 with
    `async def` methods), concurrency_groups ({}), max_pending_calls (-1: no limit), name, namespace, lifetime,
    get_if_exists (False), allow_out_of_order_execution (False).
    Each can be changed per call: `f.options(num_cpus=4).remote(...)`.
    """
    if not args:
        check_any(options)
        return lambda function: _make(function, options)
    if len(args) > 1:
        raise TypeError(
            f"remote() takes one function or class, not {len(args)}; options are given by name, as in "
            "remote(num_cpus=2)"
        )
    return _make(args[0], options)


def _make(function, given: dict):
    if isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, type):
        return _actor.make(function, given)
    _check(function)
    return wrap(function, TaskOptions(**given) if given else _DEFAULT_OPTIONS)


def wrap(function, options: TaskOptions, exported=None):
    """The remote function itself; `exported` if it is known how the function travels."""
    wrapped = _core.RemoteFunction(function, options, exported)
    attributes = wrapped.__dict__
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(function, name, None)
        if value is not None:
            attributes[name] = value
    attributes["__wrapped__"] = function
    return wrapped


def _describe(function) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _check(function) -> None:
    if isinstance(function, _core.RemoteFunction):
        raise TypeError(
            f"{_describe(function)} is a remote function already; use {_describe(function)}.options(...) to change it"
        )
    if isinstance(function, _actor.ActorClass):
        raise TypeError(
            f"{_describe(function)} is an actor class already; use {_describe(function)}.options(...) to change it"
        )
    if isinstance(function, classmethod):
        raise TypeError("weft.remote cannot take a classmethod; write a function that takes the class as an argument")
    if not callable(function):
        raise TypeError(
            f"weft.remote takes a function or a class, not {type(function).__name__}; options are given by name, as in "
            "@weft.remote(num_cpus=2)"
        )
    if type(function).__name__ in ("builtin_function_or_method", "method-wrapper", "wrapper_descriptor"):
        name = getattr(function, "__name__", "function")
        raise TypeError(
            f"{name} is built in and cannot become a remote function itself; wrap it: "
            f"weft.remote(lambda *args: {name}(*args))"
        )
    call = function
    while not hasattr(call, "__code__") and hasattr(call, "func"):  # functools.partial
        call = call.func
    code = getattr(call, "__code__", None)
    if code is None:
        code = getattr(type(call).__call__, "__code__", None)
    flags = getattr(code, "co_flags", 0)
    if flags & _COROUTINE:
        raise TypeError(
            f"{_describe(function)} is an `async def` function; a task runs to its end by itself, so write a plain "
            "`def` that calls asyncio.run(...) inside"
        )
    if flags & (_GENERATOR | _ASYNC_GENERATOR):
        raise NotImplementedError(
            f"{_describe(function)} is a generator function, and remote generators are not yet available in this "
            "version; return a list, or several values with num_returns"
        )


def with_options(remote_function, given: dict):
    """`f.options(**given)`: the same function with other options. Called by C++.

    The copies are remembered, because `f.options(...).remote(...)` in a loop must not export the function each time.
    """
    copies = remote_function.__dict__.setdefault("_weft_copies", {})
    try:
        key = tuple((option, type(value), value) for option, value in given.items())
        known = copies.get(key)
    except TypeError:  # a dict or list among them: not remembered
        key = known = None
    if known is not None:
        return known
    options = remote_function._options.merged(given)
    changed = wrap(remote_function._function, options, getattr(remote_function, "_exported", None))
    for name, value in remote_function.__dict__.items():
        if name != "_weft_copies":
            changed.__dict__.setdefault(name, value)  # what the user set on it
    if key is not None:
        if len(copies) >= _MAX_COPIES:
            copies.clear()
        copies[key] = changed
    return changed


def rebuild(function, options: TaskOptions):
    """A remote function that was pickled, in a closure for example. Called while unpickling.

    A remote function that calls itself arrives here before its body is complete (pickle closes the circle
    afterwards), so nothing beyond the attributes that exist now may be asked of it.
    """
    return wrap(function, options)


def refuse_direct_call(remote_function):
    """Raises: the user wrote f(...) instead of f.remote(...). Called by C++."""
    name = getattr(remote_function, "__name__", "f")
    raise TypeError(
        f"remote function {name!r} cannot be called directly: write {name}.remote(...) to run it as a task, "
        f"or {name}.__wrapped__(...) to run it here"
    )
