"""Functions simple enough to travel without cloudpickle, whose import is most of what a first task waits for.

Simple means: no closure, no attributes, no global that is assigned, and all globals that it names are importable
modules or constants. Everything else is the business of cloudpickle. Called by `_functions`; its other side is `build`.
"""

from __future__ import annotations

import marshal
import pickle
import sys

__all__ = ["build", "dump"]

_CONSTANTS = (type(None), bool, int, float, str, bytes)
_MAX_CONSTANT = 4096  # larger ones are worth the warning about large closures, which others give
_Function = type(lambda: None)
_Code = type((lambda: None).__code__)
_Module = type(sys)


def dump(function, importable):
    """The function as bytes for `pickle.loads`, or None if it is not simple. `importable(module)` says whether a worker
    can import it."""
    if type(function) is not _Function or function.__closure__ is not None or function.__dict__:
        return None
    if getattr(function, "__type_params__", ()):
        return None
    names = set()
    if not _collect(function.__code__, names):
        return None
    constants, modules = {}, {}
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if type(value) is _Module:
            if sys.modules.get(value.__name__) is not value or value.__name__ == "__main__" or not importable(value):
                return None
            modules[name] = value.__name__
        elif _is_constant(value):
            constants[name] = value
        else:
            return None
    if not all(map(_is_constant, function.__defaults__ or ())):
        return None
    if not all(map(_is_constant, (function.__kwdefaults__ or {}).values())):
        return None
    try:
        annotations = dict(function.__annotations__)
    except Exception:
        return None  # evaluated late, and it cannot be
    if not all(_is_constant(value) or value in (bool, int, float, str, bytes, list, dict, tuple, set)
               for value in annotations.values()):  # fmt: skip
        return None
    parts = (
        marshal.dumps(function.__code__),
        {"__name__": function.__module__, "__doc__": None, **constants},
        modules,
        sorted(_submodules(modules.values(), names)),
        (function.__name__, function.__qualname__, function.__module__, function.__doc__),
        function.__defaults__,
        function.__kwdefaults__,
        annotations,
    )
    return pickle.dumps(_Plain(parts), 5)


def build(code, constants, modules, submodules, names, defaults, keyword_defaults, annotations):
    """The function again. Named by the pickles that `dump` makes."""
    for name in submodules:
        __import__(name)
    namespace = dict(constants)
    for name, module in modules.items():
        __import__(module)
        namespace[name] = sys.modules[module]
    namespace["__builtins__"] = __builtins__
    function = _Function(marshal.loads(code), namespace, names[0], defaults)
    function.__name__, function.__qualname__, function.__module__, function.__doc__ = names
    function.__kwdefaults__ = keyword_defaults
    function.__annotations__ = annotations
    return function


class _Plain:
    def __init__(self, parts):
        self.parts = parts

    def __reduce__(self):
        return build, self.parts


def _is_constant(value) -> bool:
    if type(value) in (str, bytes):
        return len(value) <= _MAX_CONSTANT
    return type(value) in _CONSTANTS


def _collect(code, names: set) -> bool:
    """The names that the code and the functions inside it use. False if it assigns a global: functions of one module
    share those, and cloudpickle sees to that."""
    from opcode import opmap

    assigning = {opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL") if name in opmap}
    if not assigning.isdisjoint(code.co_code[::2]):
        return False
    names.update(code.co_names)
    return all(_collect(constant, names) for constant in code.co_consts if type(constant) is _Code)


def _submodules(modules, names: set):
    """`import a.b` binds only `a`: what is loaded below it and named in the code is imported over there as well."""
    for module in modules:
        prefix = module + "."
        for name in list(sys.modules):
            if name.startswith(prefix) and names.issuperset(name[len(prefix) :].split(".")):
                yield name
