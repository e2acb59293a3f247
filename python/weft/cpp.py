"""C++ functions and classes as tasks and actors: `tasks = weft.cpp.library("libtasks.so")`.

The library lists its functions and classes in a `weft::Library` (include/weft/library.h). They are then remote
functions and actor classes, as if they were Python's: `tasks.norm.remote(array)`, `tasks.Counter.remote(10)`. They
run inside the ordinary workers, which load the library when they first need it; in a cluster it is sent to nodes that
do not have it. Numbers, strings, bytes, lists, tuples, dicts, sets, references and handles of actors are translated;
NumPy arrays are read in place.
"""

from __future__ import annotations

import keyword
import os
import re

from . import _actor, _core
from ._actor import ActorClass
from ._options import ActorOptions, TaskOptions
from ._remote_function import wrap

__all__ = ["Class", "Function", "Library", "library"]

_libraries: dict = {}  # by real path
_received: dict = {}  # by body: from other processes, which may be on other machines


def library(path) -> Library:
    """Load a library of tasks. Workers load the same build of it, on machines that do not have it from a copy.

    Raises WeftError that says what is wrong with it.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"the path of a library must be text, not {type(text).__name__}")
    real = os.path.realpath(text)
    known = _libraries.get(real)
    if known is None and not os.path.exists(real):
        known = next((sent for sent in _received.values() if sent.path == real), None)
    if known is None:
        loaded = Library(*_core.load_cpp_library(real))
        known = _libraries[real] = _received.get(loaded._body, loaded)
    return known


def _find_library(path: str, body: bytes) -> Library:
    """What another process has loaded from that path, as the body of its functions says."""
    known = _libraries.get(path)
    if known is None or known._body != body:
        known = _received.get(body)
    if known is None:
        known = _received[body] = Library(*_core.load_cpp_library(path, body))
    return known


def _checked(name: str, parameters: tuple, args: tuple, kwargs: dict) -> tuple:
    if kwargs:
        raise TypeError(f"{name}() is C++ and takes no keyword arguments ({', '.join(kwargs)})")
    if len(args) != len(parameters):
        raise TypeError(
            f"{name}({', '.join(parameters)}) takes {len(parameters)} argument{'' if len(parameters) == 1 else 's'}, "
            f"but {len(args)} {'was' if len(args) == 1 else 'were'} given"
        )
    if "weft.ObjectRef" not in parameters:
        return args
    return keep_references([kind == "weft.ObjectRef" for kind in parameters], args)


def keep_references(asked: list, args: tuple) -> tuple:
    """The arguments, so that those stay references for which that is asked: inside a list they do."""
    return tuple(
        [value] if as_reference and isinstance(value, _core.ObjectRef) else value
        for as_reference, value in zip(asked, args)
    )


class _Body:
    """Stands for the function itself where Python has one: it can be named and pickled, not called."""

    def __init__(self, path: str, item: dict, exported: tuple):
        self.__name__ = self.__qualname__ = item["name"]
        self.__module__ = os.path.basename(path)
        self.__doc__ = _signature(item)
        self.__weft_exported__ = exported
        self._path = path

    def __reduce__(self):
        return _find_body, (self._path, self.__name__, self.__weft_exported__[1])

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.__name__} is a C++ function and runs in workers: write .remote(...)")


def _find_body(path: str, name: str, body: bytes):
    return _find(path, name, body)._body


def _signature(item: dict) -> str:
    return f"{item['name']}({', '.join(item['parameters'])}) -> {item['result']}"


class Function:
    """A C++ function of a library: call it with `.remote(...)`."""

    def __init__(self, library: Library, item: dict, body: bytes):
        self._library = library
        self._parameters = item["parameters"]
        self._body = _Body(library.path, item, (item["key"], body, item["name"]))
        self._remote = wrap(self._body, TaskOptions(num_returns=item["num_returns"]), self._body.__weft_exported__)
        self.__name__ = self.__qualname__ = item["name"]
        self.__doc__ = f"{_signature(item)}\n\nC++: {item['cpp_name']}"

    def remote(self, *args, **kwargs):
        """Run the function as a task; returns at once with an ObjectRef (or a list of them)."""
        return self._remote.remote(*_checked(self.__name__, self._parameters, args, kwargs))

    def options(self, **given):
        """The same function with other options, as `weft.remote` takes them (but for num_returns)."""
        if "num_returns" in given:
            raise ValueError("a C++ function says itself how many values it returns")
        copy = object.__new__(Function)
        copy.__dict__.update(self.__dict__)
        copy._remote = self._remote.options(**given)
        return copy

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.__name__} is a C++ function and runs in workers: write .remote(...)")

    def __reduce__(self):
        return _find, (self._library.path, self.__name__, self._library._body)

    def __repr__(self):
        return f"<C++ function {self.__doc__.partition(chr(10))[0]}>"


def _find(path: str, name: str, body: bytes):
    return getattr(_find_library(path, body), name)


class Class(ActorClass):
    """A C++ class of a library: make actors with `.remote(...)`."""

    def __init__(self, library: Library, item: dict, methods: list, body: bytes, options: ActorOptions | None = None):
        stand_in = type(item["name"], (), {"__doc__": f"C++: {item['cpp_name']}", "__module__": library.path})
        super().__init__(stand_in, options or ActorOptions())
        self._library = library
        self._item = item
        self._methods_found = methods
        self._body = body

    def remote(self, *args, **kwargs):
        """Make an actor; returns its handle at once."""
        from . import _api

        options, item = self._options, self._item
        if options.retry_exceptions not in (True, False):
            raise ValueError("retry_exceptions of a C++ class is True or False: its exceptions are not Python's")
        if _api.local_mode() is not None:
            raise NotImplementedError("C++ classes run in processes of their own, which local_mode has none of")
        args = _checked(item["name"], item["parameters"], args, kwargs)
        namespace = _api.namespace()
        creation = options.for_class(item["name"], False, namespace)
        blob = _core.cpp_actor_info(
            item["cpp_name"],
            options.max_pending_calls,
            options.max_task_retries,
            bool(options.retry_exceptions),
            item["name"],
            [
                (method["name"], method["num_returns"], "".join(map(_letter, method["parameters"])))
                for method in self._methods_found
            ],
        )
        settings = _core.cpp_actor_settings(
            creation.max_concurrency, dict(options.concurrency_groups), options.name or "", blob
        )
        object.__setattr__(creation, "worker_blob", settings)
        exported = (item["key"], self._body, item["name"])
        return _core.create_actor(_actor.info_from_blob(blob), creation, exported, args, {})

    def options(self, *args, **given):
        """The same class with other options."""
        if args:
            raise TypeError("options() takes keyword arguments only, as in Class.options(num_cpus=2)")
        return Class(self._library, self._item, self._methods_found, self._body, self._options.merged(given))

    def __reduce__(self):
        return _find, (self._library.path, self._item["name"], self._body)

    def __repr__(self):
        return f"<C++ class {_signature(self._item).partition(' ->')[0]}>"


def _letter(kind: str) -> str:
    return "r" if kind == "weft.ObjectRef" else "v"


class Library:
    """What a C++ library offers: its functions and classes are attributes."""

    def __init__(self, path: str, text: str, body: bytes, exports: list):
        self.path = path
        self.__doc__ = text or None
        self._body = body
        self._exports = exports
        self._names: dict = {}
        for item in exports:
            if item["kind"] == "function":
                self._names[item["name"]] = Function(self, item, body)
            elif item["kind"] == "class":
                self._names[item["name"]] = Class(self, item, self.methods(item["name"]), body)

    def methods(self, class_name: str) -> list:
        """How the methods of a class are called: dicts with name, parameters and result."""
        return [item for item in self._exports if item["kind"] == "method" and item["class_name"] == class_name]

    def __getattr__(self, name: str):
        try:
            return self.__dict__["_names"][name]
        except KeyError:
            from ._options import nearest

            known = list(self.__dict__.get("_names", ()))
            raise AttributeError(
                f"the library {self.__dict__.get('path')} exports no {name!r}{nearest(name, known)}"
            ) from None

    def __dir__(self):
        return sorted([*super().__dir__(), *self._names])

    def __iter__(self):
        return iter(self._names)

    def __reduce__(self):
        return _find_library, (self.path, self._body)

    def __repr__(self):
        return f"<C++ library {self.path}: {', '.join(self._names)}>"

    def stubs(self) -> str:
        """The library as a typed module, for checkers and editors: write it to a .pyi file."""
        lines = [
            f'"""Made from {os.path.basename(self.path)} by weft.cpp."""',
            "",
            "import typing",
            "",
            "import numpy",
            "import weft",
            "",
        ]
        for item in self._exports:
            name = item["name"]
            if item["kind"] == "method" or not name.isidentifier() or keyword.iskeyword(name):
                continue  # found by getattr only
            if item["kind"] == "function":
                lines += [*_stub_called(f"_{name}", item, _result(item)), f"{name}: _{name}", ""]
                continue
            methods = [method for method in self.methods(name) if not keyword.iskeyword(method["name"])]
            for method in methods:
                lines += _stub_called(f"_{name}_{method['name']}", method, _result(method))
            lines += [f"class _{name}Handle(weft.TypedActor):"]
            lines += [f"    {method['name']}: _{name}_{method['name']}" for method in methods] or ["    ..."]
            lines += ["", *_stub_called(f"_{name}Class", item, f"_{name}Handle"), f"{name}: _{name}Class", ""]
        return "\n".join(lines)


# How checkers know what C++ has told us the names of.
_CHECKED = {
    "tuple": "tuple[typing.Any, ...]",
    "numpy.ndarray": "numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]",
    "weft.ObjectRef": "weft.ObjectRef[typing.Any]",
    "weft.ActorHandle": "weft.ActorHandle[typing.Any]",
}


def _checked_type(kind: str) -> str:
    return re.sub(r"[\w.]+(?!\[)\b(?!\[)", lambda word: _CHECKED.get(word[0], word[0]), kind)


def _parameter(kind: str) -> str:
    checked = _checked_type(kind)
    if kind == "weft.ObjectRef":
        return checked
    own = f"{checked}, weft.TypedActor" if kind == "weft.ActorHandle" else checked
    return f"typing.Union[{own}, weft.ObjectRef[{checked}]]"


def _result(item: dict) -> str:
    if item["num_returns"] > 1:
        return "list[weft.ObjectRef[typing.Any]]"
    return f"weft.ObjectRef[{_checked_type(item['result'])}]"


def _stub_called(name: str, item: dict, result: str) -> list:
    given = "".join(f", __{number}: {_parameter(kind)}" for number, kind in enumerate(item["parameters"], 1))
    return [
        f"class {name}:",
        f"    def remote(self{given}) -> {result}: ...",
        f"    def options(self, **options: typing.Any) -> {name}: ...",
        "",
    ]
