"""Functions on their way to the workers.

A function is exported once per process and content: its key is a hash of the bytes, so that a function defined
again in a loop is recognised. It travels by value (cloudpickle), also if it comes from a module, because the module
may have been changed, or may not be importable over there; what it calls in importable modules travels by name.
If a global of the module cannot be pickled, but the module can be imported, the function travels by name as well.
Called by C++ at the first call of a remote function, and in a worker at its first execution.
"""

from __future__ import annotations

import os
import pickle
import sys

from . import _plain_function, _serialization

__all__ = ["by_name", "export", "load", "note_large_argument", "set_worker_path"]

_LARGE_BYTES = 1 << 20  # larger functions are worth a warning: each worker reads the whole

_worker_path: list = []  # sys.path as the workers got it


def set_worker_path(path: list) -> None:
    """Called by init: what the workers' sys.path starts with."""
    _worker_path[:] = path


def export(function) -> tuple:
    """(key of 16 bytes, payload, name). Raises TypeError that names what cannot be pickled."""
    ready = getattr(function, "__weft_exported__", None)  # of C++ (weft.cpp)
    if ready is not None:
        return ready
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    name = name.rpartition("<locals>.")[2]
    body = _dump(function, name)
    extra_path = [entry for entry in sys.path if isinstance(entry, str) and entry not in _worker_path]
    payload = pickle.dumps((body, [os.path.abspath(entry) for entry in extra_path], _sources(function)), 5)
    if len(payload) > _LARGE_BYTES:
        _warn_large(function, name, len(payload))
    return _digest(payload), payload, name


_IMPORT_MARK = b"\x02python import\n"  # src/wire/languages.h


def import_by_name(module: str, name: str):
    """What C++ asked for by module and name; "a.b" is b in a."""
    import importlib

    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for a script in the driver's working directory
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "__wrapped__", found) if type(found).__module__.startswith("weft") else found


def load(payload):
    """The callable again."""
    if payload[: len(_IMPORT_MARK)] == _IMPORT_MARK:
        return import_by_name(*bytes(payload[len(_IMPORT_MARK) :]).decode().split("\n", 1))
    body, extra_path, sources = pickle.loads(payload)
    for entry in extra_path:
        if entry not in sys.path:
            sys.path.append(entry)
    if sources:
        import linecache

        for filename, lines in sources.items():
            # No time of change: such an entry is never looked up on disk.
            linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
    return _serialization.loads(body, None)


def _digest(payload: bytes) -> bytes:
    try:
        from _blake2 import blake2b  # hashlib would load OpenSSL
    except ImportError:
        from hashlib import blake2b
    return blake2b(payload, digest_size=16).digest()


def by_name(cls: type):
    """What pickles as the name of the class, if that leads a worker to it; else None.

    Of a class that became an actor class, pickle would find the actor class under its name and send the class by value,
    but its methods by name: two classes of one name, and super() fails.
    """
    module = sys.modules.get(getattr(cls, "__module__", None) or "")
    return _ByName(cls.__module__, cls.__qualname__) if _is_reachable(cls, module) else None


def _dump_class(cls: type, name: str) -> bytes:
    named = by_name(cls)
    if named is not None:
        return pickle.dumps(named, 5)
    module = sys.modules.get(getattr(cls, "__module__", None) or "")
    try:
        if (
            module is not None
            and module.__name__ not in ("__main__", "__mp_main__")
            and "<locals>" not in cls.__qualname__
        ):
            return _dump_with_module(cls, module)
        return _serialization.dumps_closed(cls)
    except Exception as error:
        raise _serialization._explained(cls, "class", error) from _serialization._cause(error)


def _dump(function, name: str) -> bytes:
    if isinstance(function, type):
        return _dump_class(function, name)
    plain = _plain_function.dump(function, _importable)
    if plain is not None:
        return plain
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    unknown = module if module is not None and not _importable(module) else None
    try:
        if unknown is not None:
            return _dump_with_module(function, unknown)
        return _serialization.dumps_closed(function)
    except Exception as error:
        if unknown is None and _is_reachable(function, module):
            return pickle.dumps(_ByName(function.__module__, function.__qualname__), 5)
        raise _serialization._explained(function, "function", error) from _serialization._cause(error)


def _dump_with_module(function, module) -> bytes:
    """By value, with everything of its module that it uses: the workers could not import that."""
    import cloudpickle  # type: ignore[import-untyped]

    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        return _serialization.dumps_closed(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return _serialization.dumps_closed(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _importable(module) -> bool:
    """Whether a fresh process would find this very module. Looks for the file, imports nothing."""
    name = module.__name__
    if name in ("__main__", "__mp_main__"):
        return True  # cloudpickle takes these by value anyway
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    top = name.partition(".")[0]
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            found = find_spec(top, None) if find_spec is not None else None
        except Exception:
            found = None
        if found is not None:
            known = getattr(sys.modules.get(top), "__spec__", None)
            return known is None or found.origin == known.origin
    return False


def _is_reachable(function, module) -> bool:
    """Whether module and qualified name lead to the function, or to the remote function made of it."""
    if module is None or module.__name__ in ("__main__", "__mp_main__") or not _importable(module):
        return False
    spec = getattr(module, "__spec__", None)
    if spec is None or getattr(spec, "_initializing", False):
        return False  # it is running the very import that calls us: a worker would do the same again
    try:
        found = _resolve(module.__name__, function.__qualname__)
    except Exception:
        return False
    return found is function


def _resolve(module_name: str, qualname: str):
    import importlib

    found = importlib.import_module(module_name)
    for name in qualname.split("."):
        found = getattr(found, name)
    return getattr(found, "__wrapped__", found)


class _ByName:
    """Pickles as the function that stands under this name where it is unpickled."""

    def __init__(self, module: str, qualname: str):
        self.reference = (module, qualname)

    def __reduce__(self):
        return _resolve, self.reference


def _sources(function) -> dict:
    """Source lines of functions without a file (notebook cells, the interactive prompt), for tracebacks."""
    linecache = sys.modules.get("linecache")
    if linecache is None:
        return {}
    found = {}
    functions = list(vars(function).values()) if isinstance(function, type) else [function]
    for code in [getattr(part, "__code__", None) for part in functions]:
        entry = linecache.cache.get(code.co_filename) if code is not None else None
        # With a time of change, linecache reads it from a file.
        if entry is not None and len(entry) == 4 and entry[1] is None:
            found[code.co_filename] = entry[2]
    return found


def _warn_large(function, name: str, size: int) -> None:
    """Names what makes a function large. It is pickled piece by piece for that, which only happens to large ones."""
    import warnings

    from ._errors import user_stacklevel

    largest, where = 0, ""
    if type(function).__name__ == "function":
        for place, part in _serialization.function_parts(function):
            try:
                part_size = len(_serialization.dumps_closed(part))
            except Exception:
                continue
            if part_size > largest:
                largest, where = part_size, place.strip(" ()")
    culprit = f", most of it ({largest / 1e6:.1f} MB) the {where}" if where and largest * 2 > size else ""
    warnings.warn(
        f"the remote function {name!r} takes {size / 1e6:.1f} MB when it is sent to a worker{culprit}. "
        "Call weft.put(...) on the data once and pass the reference as an argument instead",
        UserWarning,
        stacklevel=user_stacklevel(),
    )


# ---- large arguments ------------------------------------------------------------------------------------------------

_WARN_AT = 3  # the third time that a value is passed
_REMEMBERED = 64  # large values; older ones are forgotten
_seen: dict = {}  # id of the value -> [what tells it from a later one with the same id, how often it was passed]


def note_large_argument(value, size: int, function_name: str) -> None:
    """Warn, once, if the same large value is passed again and again: each call copies it. Called by C++."""
    known = _seen.get(id(value))
    if known is None or not _is_same(known[0], value):
        while len(_seen) >= _REMEMBERED:
            _seen.pop(next(iter(_seen)), None)
        _seen[id(value)] = [_mark(value), 1]
        return
    known[1] += 1
    if known[1] != _WARN_AT:
        return
    import warnings

    from ._errors import user_stacklevel

    warnings.warn(
        f"the same {type(value).__name__} of {size / 1e6:.1f} MB is passed to {function_name!r} again and again, and "
        "copied each time. Call ref = weft.put(...) on it once and pass ref instead",
        UserWarning,
        stacklevel=user_stacklevel(),
    )


def _mark(value):
    """A weak reference, or for what allows none something that another value is unlikely to share."""
    import weakref

    try:
        return weakref.ref(value)
    except TypeError:
        return _sample(value)


def _sample(value):
    if isinstance(value, (bytes, str, bytearray)):
        return type(value), len(value), value[:64], value[-64:]
    if isinstance(value, (list, tuple)):
        return type(value), len(value), [id(item) for item in value[:8]]
    return type(value), len(value) if hasattr(value, "__len__") else 0


def _is_same(mark, value) -> bool:
    return mark() is value if callable(mark) else mark == _sample(value)
