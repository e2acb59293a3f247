"""`init(local_mode=True)`: tasks and calls of actors run inside `.remote(...)`, on the caller's thread, in the order in
which they were made. For debugging: breakpoints work, and every run is the same.

References are those of an ordinary session in which no worker is used, so put, get, wait and await need nothing from
here. Arguments and results are stored and read back, so that a change of one is not seen elsewhere, as in the real
thing. What cannot happen here: death of a process, two calls at once, cancelling (everything has ended when `.remote`
returns).
"""

from __future__ import annotations

import os

from . import _core, _errors
from ._actor import _Found, check_arguments, method_with_options, missing_method, refuse_method_call
from .exceptions import ActorDiedError

__all__ = [
    "Handle",
    "LocalMethod",
    "create",
    "current_call",
    "current_handle",
    "current_settings",
    "kill",
    "list_actors",
    "lookup",
    "start",
    "stop",
]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)  # a copy would not differ

_actors: dict = {}  # id -> _Actor; kept until the session ends
_names: dict = {}  # (namespace, name) -> _Actor
_stack: list = []  # the calls that run now, the innermost last
_next = 0


def start() -> None:
    """From now on, tasks run here. Called by init."""
    stop()
    _core.set_local_mode({"task": run_task})


def stop() -> None:
    """Forget everything. Called by shutdown."""
    global _next
    for actor in _actors.values():
        actor.close()
    _actors.clear()
    _names.clear()
    _stack.clear()
    _next = 0
    _core.set_local_mode(None)


def _new_id() -> str:
    global _next
    _next += 1
    return f"{_next:032x}"


# ---- running --------------------------------------------------------------------------------------------------------


class _Call:
    def __init__(self, name: str, resources: dict, actor=None):
        self.actor = actor
        self.described = {
            "task_id": _new_id(),
            "name": name,
            "attempt": 0,
            "actor_id": actor.id if actor is not None else None,
            "incarnation": actor.incarnation if actor is not None else 0,
            "gpus": [(number, 1.0) for number in range(int(resources.get("GPU", 0)))],
            "resources": resources,
            "submitter": 0,
        }


def _copied(value):
    return value if type(value) in _PLAIN else _core.get(_core.put(value), None)


def _argument(value):
    return _core.get(value, None) if isinstance(value, _core.ObjectRef) else _copied(value)


def _must_pass(error: BaseException) -> bool:
    """What is meant for the whole program: Ctrl-C, and leaving the debugger."""
    return isinstance(error, KeyboardInterrupt) or type(error).__name__ == "BdbQuit"


def _run(call: _Call, num_returns: int, retries: int, retry_payload: bytes, function, args, kwargs):
    """Run it, and give what `.remote` returns."""
    name = call.described["name"]
    try:
        # An argument that failed fails the call, before it runs.
        args = [_argument(value) for value in args]
        kwargs = {key: _argument(value) for key, value in kwargs.items()}
    except Exception as error:
        return _failed(error, name, num_returns)
    while True:
        _stack.append(call)
        try:
            result = function(*args, **kwargs)
            return _stored(result, num_returns, name)
        except BaseException as error:
            if _must_pass(error):
                raise
            if isinstance(error, _errors.ActorExit) and call.actor is not None:
                call.actor.die(f"actor {call.actor.info.name} exited: exit_actor() was called in {name}")
                return _failed(call.actor.error(), name, num_returns)
            if retries != 0 and _errors.should_retry(error, retry_payload):
                retries -= 1
                call.described["attempt"] += 1
                continue
            return _failed(error, name, num_returns)
        finally:
            _stack.pop()


def _stored(result, num_returns: int, name: str):
    if num_returns == 1:
        return _core.put(result)
    if num_returns == 0:
        return None
    try:
        items = list(result)
    except TypeError:
        raise TypeError(
            f"task {name!r} has num_returns={num_returns}, but it returned a {type(result).__name__}, "
            "which cannot be divided"
        ) from None
    if len(items) != num_returns:
        raise ValueError(f"task {name!r} has num_returns={num_returns}, but it returned {len(items)} values")
    return [_core.put(item) for item in items]


def _failed(error: BaseException, name: str, num_returns: int):
    if isinstance(error, ActorDiedError) and not hasattr(error, "function_name"):
        cause = getattr(error, "_weft_constructor", b"")
        payload, is_system = f"ActorDiedError\n{error}".encode() + (b"\0" + cause if cause else b""), True
    else:
        payload, is_system = _errors.pack_exception(error, name, os.getpid()), False
    if num_returns == 0:
        return None
    if num_returns == 1:
        return _core.put_error(payload, is_system)
    return [_core.put_error(payload, is_system) for _ in range(num_returns)]


def run_task(remote_function, args: tuple, kwargs: dict):
    """`f.remote(...)`. Called by C++."""
    options = remote_function._options
    function = remote_function._function
    name = options.name or getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    call = _Call(name, _resources(options))
    return _run(call, options.num_returns, options.max_retries, options.retry_payload, function, args, kwargs)


def _resources(options) -> dict:
    held = {"CPU": options.num_cpus, "GPU": options.num_gpus, "memory": options.memory, **options.resources}
    return {name: float(amount) for name, amount in held.items() if amount}


# ---- actors ---------------------------------------------------------------------------------------------------------


class _Actor:
    def __init__(self, info, creation, cls: type, args: tuple, kwargs: dict):
        self.id = _new_id()
        self.info = info
        self.creation = creation
        self.cls = cls
        self.arguments = (args, kwargs)
        self.incarnation = 0
        self.restarts_left = creation.max_restarts
        self.instance = None
        self.why_dead = None
        self.constructor_error = b""
        self.loop = None
        self.is_async = _Found(cls).is_async

    def construct(self) -> None:
        self.incarnation += 1
        args, kwargs = self.arguments
        name = f"{self.info.name}.__init__"
        _stack.append(_Call(name, _resources(self.creation), self))
        try:
            self.instance = self.cls(*map(_argument, args), **{key: _argument(value) for key, value in kwargs.items()})
        except BaseException as error:
            if _must_pass(error):
                raise
            self.constructor_error = _errors.pack_exception(error, name, os.getpid())
            self.die(f"actor {self.info.name} ({self.id}) could not be made: its constructor raised an exception")
        finally:
            _stack.pop()

    def die(self, why: str) -> None:
        self.why_dead = why
        self.instance = None
        key = (self.creation.namespace or "", self.creation.name)
        if _names.get(key) is self:
            del _names[key]
        self.close()

    def error(self) -> ActorDiedError:
        error = ActorDiedError(self.why_dead)
        if self.constructor_error:
            error.__dict__["_weft_constructor"] = self.constructor_error
        return error

    def run(self, function, args, kwargs):
        result = function(*args, **kwargs)
        return self.wait_for(result) if self.is_async and type(result).__name__ == "coroutine" else result

    def wait_for(self, coroutine):
        """Run it to its end in the actor's loop; in a thread of its own if this one runs a loop already."""
        import asyncio

        async def whole():
            return await coroutine

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        if asyncio._get_running_loop() is None and not self.loop.is_running():
            return self.loop.run_until_complete(whole())
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, whole()).result()

    def close(self) -> None:
        if self.loop is not None and not self.loop.is_running():
            self.loop.close()
        self.loop = None


class Handle:
    """A handle of an actor in local mode; behaves as weft._core.ActorHandle."""

    __slots__ = ("__weakref__", "_actor")

    def __init__(self, actor: _Actor):
        self._actor = actor

    @property
    def _info(self):
        return self._actor.info

    @property
    def _actor_id(self) -> str:
        return self._actor.id

    def __getattr__(self, name):
        options = self._actor.info.methods.get(name)
        if options is None:
            missing_method(self, name)
        return LocalMethod(self, name, options)

    def __hash__(self):
        return hash(self._actor.id)

    def __eq__(self, other):
        return self._actor is other._actor if isinstance(other, Handle) else NotImplemented

    def __reduce__(self):
        return _find, (self._actor.id,)

    def __repr__(self):
        return f"Actor({self._actor.info.name}, {self._actor.id})"


def _find(actor_id: str) -> Handle:
    actor = _actors.get(actor_id)
    if actor is None:
        raise ValueError(f"the actor {actor_id} belonged to a session that has ended")
    return Handle(actor)


class LocalMethod:
    """A method of an actor in local mode; behaves as weft._core.ActorMethod."""

    __slots__ = ("_handle", "_name", "_options")

    def __init__(self, handle: Handle, name: str, options):
        self._handle = handle
        self._name = name
        self._options = options

    def options(self, **given):
        return method_with_options(self, given)

    def __call__(self, *args, **kwargs):
        refuse_method_call(self)

    def remote(self, *args, **kwargs):
        actor, options = self._handle._actor, self._options
        if _actors.get(actor.id) is not actor:
            raise ValueError(f"{self._handle!r} belonged to a session that has ended")
        name = options.name or f"{actor.info.name}.{self._name}"
        if self._name == "__weft_ready__":
            function = _true
        elif self._name == "__weft_terminate__":
            function = _exit
        else:
            check_arguments(self, args, kwargs)
            function = getattr(actor.instance, self._name, None)
        if actor.why_dead is not None:
            return _failed(actor.error(), name, options.num_returns)
        call = _Call(name, _resources(actor.creation), actor)

        def run(*args, **kwargs):
            return actor.run(function, args, kwargs)

        return _run(call, options.num_returns, options.max_task_retries, options.retry_payload, run, args, kwargs)


def _true() -> bool:
    return True


def _exit() -> None:
    raise _errors.ActorExit(0)


def create(info, creation, cls: type, args: tuple, kwargs: dict) -> Handle:
    """`Class.remote(...)`."""
    if not _core.is_started():
        raise RuntimeError("the session has ended")
    key = (creation.namespace or "", creation.name)
    if creation.name is not None and key in _names:
        if creation.get_if_exists:
            return Handle(_names[key])
        raise ValueError(f"the name {creation.name!r} is taken by another actor; get_if_exists=True asks for that one")
    kept = tuple(value if isinstance(value, _core.ObjectRef) else _copied(value) for value in args)
    kept_kwargs = {
        key: value if isinstance(value, _core.ObjectRef) else _copied(value) for key, value in kwargs.items()
    }
    actor = _Actor(info, creation, cls, kept, kept_kwargs)
    _actors[actor.id] = actor
    if creation.name is not None:
        _names[key] = actor
    actor.construct()
    return Handle(actor)


def lookup(name: str, namespace: str) -> Handle:
    actor = _names.get((namespace, name))
    if actor is None:
        raise ValueError(f"there is no actor named {name!r} in the namespace {namespace!r}")
    return Handle(actor)


def list_actors(all_namespaces: bool, namespace: str) -> list:
    return [key for key in _names if all_namespaces or key[0] == namespace]


def kill(handle: Handle, no_restart: bool) -> None:
    actor = handle._actor
    if actor.why_dead is not None:
        return
    if not no_restart and actor.restarts_left != 0:
        actor.restarts_left -= actor.restarts_left > 0
        actor.construct()
        return
    actor.die(f"actor {actor.info.name} ({actor.id}) was killed by weft.kill()")


def current_call() -> dict | None:
    return _stack[-1].described if _stack else None


def current_handle():
    actor = _stack[-1].actor if _stack else None
    return None if actor is None else Handle(actor)


def current_settings():
    actor = _stack[-1].actor if _stack else None
    return None if actor is None else actor.creation
