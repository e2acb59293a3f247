"""Actor classes: the result of `@weft.remote` on a class, its methods, and the public functions for actors.

The calls themselves are C++ (weft._core.ActorHandle and ActorMethod). What a process must know of a class to call its
actors is an ActorInfo; it travels as a blob with every handle, so callers load nothing of the class itself.
weft._actor_worker is for the actor's own process.
"""

from __future__ import annotations

from . import _api, _core
from ._options import ActorOptions, MethodOptions, check_name, nearest

__all__ = [
    "ActorClass",
    "TypedActor",
    "WorkerSettings",
    "cancel",
    "check_arguments",
    "exit_actor",
    "get_actor",
    "info_from_blob",
    "kill",
    "list_named_actors",
    "method",
    "method_with_options",
    "missing_method",
    "read_worker_blob",
    "refuse_method_call",
]

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # co_flags, as in inspect (which is slow to import)
_VARARGS, _VARKEYWORDS = 0x04, 0x08
_MARK = "__weft_method__"  # the attribute in which @weft.method leaves its options
_MAX_COPIES = 32  # remembered per actor class
_REFERENCE = "ref"  # so begin the names of C++ parameters that are references
_NEVER = 1 << 30  # as min_args: every call is looked at by check_arguments

# Every actor has these, answered by its process itself.
_OWN_METHODS = ("__weft_ready__", "__weft_terminate__")

# Special methods that Python itself asks a handle for: they mean the handle, not the actor.
_NOT_METHODS = frozenset(dir(object)) | {
    "__annotations__",
    "__await__",
    "__class_getitem__",
    "__copy__",
    "__deepcopy__",
    "__del__",
    "__getattr__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getstate__",
    "__instancecheck__",
    "__set_name__",
    "__setstate__",
    "__subclasscheck__",
}


# ---- the parameters of a function -----------------------------------------------------------------------------------


class _Parameters:
    """The parameters of a function after the first `skipped` ones, as text and as limits."""

    __slots__ = ("max_args", "min_args", "text")

    def __init__(self, text, min_args: int, max_args: int):
        self.text = text
        self.min_args = min_args
        self.max_args = max_args


_UNKNOWN = _Parameters(None, 0, -1)


def _parameters(function, skipped: int) -> _Parameters:
    """Of plain functions only; of anything else they are found out by calling it."""
    code = getattr(function, "__code__", None)
    if code is None or type(function).__name__ != "function":
        return _UNKNOWN
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    defaults = len(function.__defaults__ or ())
    keyword_defaults = function.__kwdefaults__ or {}
    if count < skipped and not code.co_flags & _VARARGS:
        return _UNKNOWN  # a method without self: every call fails, in the worker, with Python's own words
    parts = []
    for i in range(count):
        if i >= skipped:
            parts.append(f"{names[i]}=None" if i >= count - defaults else names[i])
        if i + 1 == code.co_posonlyargcount and parts:
            parts.append("/")
    at = count + keyword_only
    if code.co_flags & _VARARGS:
        parts.append("*" + names[at])
        at += 1
    elif keyword_only:
        parts.append("*")
    needed = False
    for name in names[count : count + keyword_only]:
        parts.append(f"{name}=None" if name in keyword_defaults else name)
        needed = needed or name not in keyword_defaults
    if code.co_flags & _VARKEYWORDS:
        parts.append("**" + names[at])
    min_args = _NEVER if needed else max(count - defaults - skipped, 0)
    max_args = -1 if code.co_flags & _VARARGS else max(count - skipped, 0)
    return _Parameters(", ".join(parts), min_args, max_args)


_stubs: dict = {}  # (name, parameters) -> a function with these parameters that does nothing


def _check(name: str, parameters, args: tuple, kwargs: dict) -> None:
    """Raises TypeError in Python's own words if these arguments do not fit."""
    if parameters is None:
        return
    stub = _stubs.get((name, parameters))
    if stub is None:
        namespace: dict = {}
        try:
            exec(f"def stub({parameters}): pass", namespace)
            stub = namespace["stub"]
            stub.__name__, stub.__qualname__ = name.rpartition(".")[2], name
            stub.__code__ = stub.__code__.replace(co_name=name)  # what Python 3.9 says in its TypeError
        except SyntaxError:  # names that no source can have
            stub = lambda *args, **kwargs: None  # noqa: E731
        if len(_stubs) > 10_000:
            _stubs.clear()
        _stubs[(name, parameters)] = stub
    try:
        stub(*args, **kwargs)
    except TypeError as error:
        raise TypeError(str(error)) from None


def check_arguments(method, args: tuple, kwargs: dict) -> tuple | None:
    """Raises TypeError if the method cannot be called like this. Called by C++ for calls that min_args and max_args of
    the method's options do not allow, or that have keywords. A tuple: the arguments to call it with instead."""
    info, parameters = method._handle._info, method._options.parameters
    _check(f"{info.name}.{method._name}", parameters, args, kwargs)
    if parameters is None or not args or not _of_cpp(info.blob):
        return None
    from . import cpp

    return cpp.keep_references([name.startswith(_REFERENCE) for name in parameters.split(", ")], args)


# ---- what callers know of a class -----------------------------------------------------------------------------------


class _Found:
    """The methods of a class."""

    __slots__ = ("generators", "init", "is_async", "methods")

    def __init__(self, cls: type):
        self.methods: dict = {}  # name -> (what @weft.method said, _Parameters)
        self.generators: list = []
        self.is_async = False
        names: dict = {}
        for base in cls.__mro__:
            if base is not object:
                for name, value in base.__dict__.items():
                    names.setdefault(name, value)
        for name, value in names.items():
            if name not in _NOT_METHODS:
                self._add(cls, name, value)
        init = cls.__init__
        self.init = _UNKNOWN
        # With a __new__ or a metaclass of its own, the class decides by itself what it is called with.
        if cls.__new__ is object.__new__ and type(cls).__call__ is type.__call__:
            self.init = _Parameters("", 0, 0) if init is object.__init__ else _parameters(init, 1)

    def _add(self, cls: type, name: str, value) -> None:
        if isinstance(value, (type, property, _core.RemoteFunction, ActorClass)):
            return
        skipped = 1
        function = value
        if isinstance(value, staticmethod):
            skipped, function = 0, value.__func__
        elif isinstance(value, classmethod):
            function = value.__func__
        elif not callable(value):
            try:
                if not callable(value.func) or not callable(getattr(cls, name)):  # functools.partialmethod
                    return
            except Exception:
                return
        elif not hasattr(type(value), "__get__"):
            skipped = 0  # an object that is called without self
        inner = function
        while not hasattr(inner, "__code__") and hasattr(inner, "func"):
            inner = inner.func
        flags = getattr(getattr(inner, "__code__", None), "co_flags", 0)
        if flags & (_GENERATOR | _ASYNC_GENERATOR):
            self.generators.append(name)
            return
        self.is_async = self.is_async or bool(flags & _COROUTINE)
        given = getattr(inner, _MARK, None) or getattr(function, _MARK, None) or {}
        self.methods[name] = (given, _parameters(function, skipped))


def _encode(cls: type, found: _Found, options: ActorOptions) -> bytes:
    """The blob. The same class and options give the same bytes: blobs are keys."""
    import pickle

    methods = []
    for name, (given, parameters) in found.methods.items():
        said = dict(given)
        for option in ("max_task_retries", "retry_exceptions"):
            if option in options.given:
                said.setdefault(option, options.given[option])
        if isinstance(said.get("retry_exceptions"), tuple):
            said["retry_exceptions"] = MethodOptions(retry_exceptions=said["retry_exceptions"]).retry_payload
        group = said.get("concurrency_group")
        if group is not None and group not in options.concurrency_groups:
            raise ValueError(_no_group(f"{cls.__name__}.{name}", group, options.concurrency_groups))
        methods.append((name, said, parameters.text, parameters.min_args, parameters.max_args))
    content = (
        cls.__name__,
        tuple(methods),
        tuple(found.generators),
        options.max_pending_calls,
        tuple(options.concurrency_groups),
    )
    return pickle.dumps(content, 5)


def _no_group(where: str, group: str, groups) -> str:
    known = f"it has {', '.join(map(repr, groups))}" if groups else "it has none"
    return (
        f"{where} asks for the concurrency group {group!r}, but {known}; name the groups where the actor is made: "
        f'concurrency_groups={{"{group}": 2}}'
    )


def _decode(blob: bytes) -> tuple:
    import pickle

    return pickle.loads(blob)


def _of_cpp(blob: bytes) -> bool:
    """Whether C++ made the description: of a class of its own, or of a Python class that it named."""
    return blob[:1] in (b"\x01", b"\x02")


_infos: dict = {}  # blob -> ActorInfo; one per class and set of options, so it stays small


def info_from_blob(blob: bytes):
    """The ActorInfo that this blob describes. Called by C++ when a handle arrives."""
    info = _infos.get(blob)
    if info is None and blob[:1] == b"\x01":
        info = _infos[blob] = _cpp_info(blob)
    if info is None and blob[:1] == b"\x02":
        info = _infos[blob] = _imported_info(blob)
    if info is None:
        name, methods, _, max_pending_calls, _ = _decode(blob)
        options = {
            method: _method_options(said).with_parameters(parameters, min_args, max_args)
            for method, said, parameters, min_args, max_args in methods
        }
        for own in _OWN_METHODS:
            options[own] = MethodOptions().with_parameters("", 0, 0)
        if len(_infos) > 10_000:  # classes made in a loop must not pile up for ever
            _infos.clear()
        info = _infos[blob] = _core.ActorInfo(name, options, blob, max_pending_calls)
    return info


def _cpp_info(blob: bytes):
    """Of an actor of a C++ class: its methods are those that its library exports."""
    name, max_pending_calls, max_task_retries, retry_exceptions, exported, methods = _core.read_cpp_actor_info(blob)
    options = {own: MethodOptions().with_parameters("", 0, 0) for own in _OWN_METHODS}
    given = {"max_task_retries": max_task_retries, "retry_exceptions": retry_exceptions}
    for method, num_returns, parameters in methods:
        count = len(parameters)
        text = ", ".join(f"{_REFERENCE if kind == 'r' else 'a'}{n}" for n, kind in enumerate(parameters, 1))
        least = _NEVER if "r" in parameters else count
        options[method] = MethodOptions(num_returns=num_returns, **given).with_parameters(
            text + (", /" if count else ""), least, count
        )
    return _core.ActorInfo(exported or name, options, blob, max_pending_calls)


def _imported_info(blob: bytes):
    """Of an actor of a Python class that C++ has named."""
    from ._functions import import_by_name

    module, name, max_pending_calls, max_task_retries, retry_exceptions = _core.decode_native(b"\x01" + blob[1:])
    cls = import_by_name(module, name)
    given = {"max_task_retries": max_task_retries, "retry_exceptions": retry_exceptions}
    found = info_from_blob(_encode(cls, _Found(cls), ActorOptions(max_pending_calls=max_pending_calls, **given)))
    return _core.ActorInfo(found.name, found.methods, blob, max_pending_calls)


def _method_options(said: dict) -> MethodOptions:
    options = object.__new__(MethodOptions)
    options._fill(said)  # checked where it was written
    return options


# ---- called by C++ --------------------------------------------------------------------------------------------------


def missing_method(handle, name: str):
    """Raises: the actor has no such method. Called by C++."""
    info = handle._info
    if not _of_cpp(info.blob) and name in _decode(info.blob)[2]:
        raise NotImplementedError(
            f"{info.name}.{name} is a generator, and remote generators are not yet available in this version; "
            "return a list, or several values with num_returns"
        )
    own = [known for known in info.methods if known not in _OWN_METHODS]
    if name in ("remote", "options"):
        hint = f"; this is an actor, not its class: write handle.method.{name}(...)"
    elif not own:
        hint = "; its class has no methods"
    else:
        hint = nearest(name, own)
    raise AttributeError(
        f"actor {info.name} has no method {name!r}{hint}"
        + ("" if name.startswith("_") else " (attributes of an actor are read by methods)")
    )


def method_with_options(method, given: dict):
    """`handle.method.options(**given)`. Called by C++."""
    options = method._options.merged(given)
    info = method._handle._info
    if "concurrency_group" in given and options.concurrency_group is not None and not _of_cpp(info.blob):
        groups = _decode(info.blob)[4]
        if options.concurrency_group not in groups:
            raise ValueError(_no_group(f"{info.name}.{method._name}", options.concurrency_group, groups))
    return type(method)(method._handle, method._name, options)


def refuse_method_call(method):
    """Raises: the user wrote handle.method(...) instead of handle.method.remote(...). Called by C++."""
    name = method._name
    raise TypeError(
        f"method {name!r} of actor {method._handle._info.name} cannot be called directly: write "
        f".{name}.remote(...), and weft.get(...) for its result"
    )


class WorkerSettings:
    """What the process of an actor knows of it before its class is loaded."""

    def __init__(
        self,
        class_name: str,
        is_async: bool | None,
        max_concurrency: int,
        concurrency_groups: dict,
        name: str | None,
        namespace: str,
    ):
        self.class_name = class_name
        self.is_async = is_async
        self.max_concurrency = max_concurrency
        self.concurrency_groups = concurrency_groups
        self.name = name
        self.namespace = namespace

    def complete(self, cls: type) -> None:
        """Find out from the class what is not known yet."""
        if self.is_async is None:
            self.is_async = _Found(cls).is_async
            self.max_concurrency = self.max_concurrency or (1000 if self.is_async else 1)


own_settings: WorkerSettings | None = None  # in the process of an actor: its own


def read_worker_blob(blob: bytes) -> WorkerSettings:
    """What `ActorOptions.for_class` wrote. Called in the process of the actor, which has only this one."""
    import pickle

    global own_settings
    if blob[:1] == b"\x02":  # from C++, which does not know the class
        class_name, limit, groups, name, namespace = _core.decode_native(b"\x01" + blob[1:])
        own_settings = WorkerSettings(class_name, None, limit, dict(groups), name or None, namespace)
    else:
        own_settings = WorkerSettings(**pickle.loads(blob))
    return own_settings


# ---- actor classes --------------------------------------------------------------------------------------------------


class ActorClass:
    """A class whose instances are actors: `Class.remote(...)` makes one in a process of its own."""

    def __init__(self, cls: type, options: ActorOptions):
        self._cls = cls
        self._options = options
        self._found = None  # made when first needed
        self._info = None
        self._creation = None  # with the namespace and the process it was made for
        self._exported = None
        self._copies: dict = {}
        self.__wrapped__ = cls
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(self, name, getattr(cls, name, None))

    def remote(self, *args, **kwargs):
        """Make an actor; returns its handle at once. The arguments are those of the class."""
        found = self._methods()
        abstract = getattr(self._cls, "__abstractmethods__", None)
        if abstract:
            raise TypeError(
                f"{self._cls.__name__} is abstract and cannot be made: {', '.join(sorted(abstract))} must be defined"
            )
        _check(f"{self._cls.__qualname__.rpartition('<locals>.')[2]}.__init__", found.init.text, args, kwargs)
        namespace = _api.namespace()
        creation = self._creation
        if creation is None or (creation.namespace != namespace and self._options.namespace is None):
            creation = self._options.for_class(self._cls.__name__, found.is_async, namespace)
            self._creation = creation
        if self._info is None:
            self._info = info_from_blob(_encode(self._cls, found, self._options))
        local = _api.local_mode()
        if local is not None:
            return local.create(self._info, creation, self._cls, args, kwargs)
        if self._exported is None:
            self._exported = _core._export(self._cls)
        return _core.create_actor(self._info, creation, self._exported, args, kwargs)

    def options(self, *args, **given):
        """The same class with other options."""
        if args:
            raise TypeError("options() takes keyword arguments only, as in Class.options(num_cpus=2)")
        try:
            key = tuple((option, type(value), value) for option, value in given.items())
            known = self._copies.get(key)
        except TypeError:  # a dict or list among them: not remembered
            key = known = None
        if known is not None:
            return known
        changed = ActorClass(self._cls, self._options.merged(given))
        changed._found, changed._exported = self._found, self._exported
        if key is not None:
            if len(self._copies) >= _MAX_COPIES:
                self._copies.clear()
            self._copies[key] = changed
        return changed

    def _methods(self) -> _Found:
        if self._found is None:
            self._found = _Found(self._cls)
        return self._found

    def __call__(self, *args, **kwargs):
        name = self._cls.__name__
        raise TypeError(
            f"actor class {name!r} cannot be called directly: write {name}.remote(...) to make an actor, or "
            f"{name}.__wrapped__(...) for a plain object"
        )

    def __mro_entries__(self, bases):
        name = self._cls.__name__
        raise TypeError(
            f"{name} is an actor class and cannot be inherited from: inherit from the plain class and make that "
            f"remote, as in `class Base: ...`, `{name} = weft.remote(Base)`, `@weft.remote class Derived(Base): ...`; "
            f"the plain class of {name} is {name}.__wrapped__"
        )

    def __instancecheck__(self, instance):
        return isinstance(instance, self._cls)

    def __getattr__(self, name):
        # Only what is not found otherwise: the attributes of the class.
        if name in ("_cls", "__wrapped__") or (name.startswith("__") and name.endswith("__") and name in _NOT_METHODS):
            raise AttributeError(name)
        try:
            return getattr(self._cls, name)
        except AttributeError:
            raise AttributeError(
                f"actor class {self._cls.__name__!r} has no attribute {name!r}"
                f"{nearest(name, [known for known in dir(self._cls) if not known.startswith('__')] + ['remote'])}"
            ) from None

    def __reduce__(self):
        from ._functions import by_name

        return rebuild, (by_name(self._cls) or self._cls, self._options)

    def __repr__(self):
        return f"ActorClass({self._cls.__qualname__})"


def rebuild(cls: type, options: ActorOptions) -> ActorClass:
    """An actor class that was pickled, in a closure for example."""
    return ActorClass(cls, options)


def make(cls: type, given: dict) -> ActorClass:
    """`weft.remote` of a class."""
    if issubclass(cls, BaseException):
        raise TypeError(f"{cls.__qualname__} is an exception, and cannot become an actor")
    if cls.__module__ == "builtins":
        raise TypeError(
            f"{cls.__qualname__} is built in and cannot become an actor itself; inherit from it: "
            f"@weft.remote class Mine({cls.__qualname__}): ..."
        )
    made = ActorClass(cls, ActorOptions(**given))
    made._methods()  # wrong uses of weft.method are reported where the class is written
    return made


def method(*args, **options):
    """Options of a method of an actor class: `@weft.method(num_returns=2)`.

    num_returns (1), concurrency_group (None), max_task_retries (as the actor says), retry_exceptions (as the actor
    says), name (Class.method). Each can be changed per call: `handle.method.options(num_returns=2).remote(...)`.
    Without options, `@weft.method` only tells type checkers that the method is called on handles; see TypedActor.
    """
    if len(args) > 1 or (args and (options or not _is_method(args[0]))):
        raise TypeError(
            "write @weft.method above a method, or @weft.method(num_returns=2) with options by name; it does not take "
            + ", ".join(repr(arg) for arg in args)
        )
    if args:
        return args[0]
    checked = MethodOptions(**options).given

    def mark(function):
        inner = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
        if not _is_method(inner):
            raise TypeError(f"weft.method is for methods of a class that becomes an actor, not for {inner!r}")
        setattr(inner, _MARK, checked)
        return function

    return mark


def _is_method(value) -> bool:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return callable(value) and not isinstance(value, (type, property, _core.RemoteFunction, ActorClass))


class TypedActor:
    """Base of actor classes whose handles type checkers know. Has no effect at run time."""

    __slots__ = ()


# ---- the public functions -------------------------------------------------------------------------------------------


def _is_handle(value) -> bool:
    local = _api.local_mode()
    return isinstance(value, _core.ActorHandle) or (local is not None and isinstance(value, local.Handle))


def get_actor(name: str, namespace: str | None = None):
    """The handle of the actor with this name. Raises ValueError if there is none.

    namespace: where to look; by default in that of this session.
    """
    check_name("name", name)
    space = _api.namespace() if namespace is None else check_name("namespace", namespace)
    local = _api.local_mode()
    if local is not None:
        return local.lookup(name, space)
    return _core.lookup_actor(name, space)


def list_named_actors(all_namespaces: bool = False) -> list:
    """The names of the living actors that have one, in this namespace; or, with all_namespaces, of all as dicts
    {"name": ..., "namespace": ...}."""
    if not isinstance(all_namespaces, bool):
        raise TypeError(f"all_namespaces must be True or False, not {all_namespaces!r}")
    local = _api.local_mode()
    ask = local.list_actors if local is not None else _core.list_actors
    found = sorted(ask(all_namespaces, "" if all_namespaces else _api.namespace()))
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in found]
    return [name for _, name in found]


def kill(actor, *, no_restart: bool = True) -> None:
    """End an actor at once, whatever it does. Its pending calls fail with ActorDiedError.

    no_restart: if False, it is as if the actor's process had died, and it starts again if max_restarts allows.
    """
    if not isinstance(no_restart, bool):
        raise TypeError(f"no_restart must be True or False, not {no_restart!r}")
    if not _is_handle(actor):
        hint = ""
        if isinstance(actor, _core.ObjectRef):
            hint = "; to stop a task, use weft.cancel(ref)"
        elif isinstance(actor, ActorClass):
            hint = f"; it is a class: give what {actor.__name__}.remote(...) returned"
        raise TypeError(f"kill() expects the handle of an actor, not {type(actor).__name__}{hint}")
    local = _api.local_mode()
    if local is not None:
        local.kill(actor, no_restart)
    else:
        _core.kill_actor(actor, no_restart)


def cancel(ref, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel a task or a call of an actor. `get` of its references raises TaskCancelledError.

    One that has not begun never begins. In a running one, TaskCancelledError is raised (an asyncio task of an actor is
    cancelled). force: end the worker process of a running task; not for calls of actors. recursive: cancel what it
    started, too. One that has ended stays as it is.
    """
    for name, value in (("force", force), ("recursive", recursive)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
    if not isinstance(ref, _core.ObjectRef):
        hint = "; to end an actor, use weft.kill(handle)" if _is_handle(ref) else ""
        if isinstance(ref, (list, tuple)):
            hint = "; cancel each reference by itself"
        raise TypeError(f"cancel() expects an ObjectRef, not {type(ref).__name__}{hint}")
    if _api.local_mode() is None:
        _core.cancel(ref, force, recursive)


def exit_actor() -> None:
    """Called in a method: end this actor after the calls that run now. The present call, and those that wait, fail with
    ActorDiedError; the actor is not restarted."""
    from . import _runtime_context
    from ._errors import ActorExit

    call = _runtime_context.current_call()
    if call is None or call["actor_id"] is None:
        raise RuntimeError(
            "exit_actor() was called outside of an actor; to end an actor from outside, weft.kill(handle)"
        )
    raise ActorExit(0)
