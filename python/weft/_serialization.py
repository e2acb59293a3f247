"""Values that C++ does not encode itself, to bytes and back.

Pickle protocol 5: the large parts (arrays, Arrow buffers, numeric pandas columns) are handed out beside the pickle
and go into shared memory as they are; they come back as views of it, without a copy and read-only. The C pickler
goes first because it is fast. What it refuses (lambdas, local classes), and what it would pickle by a name that a
worker does not know (everything of `__main__`), goes to cloudpickle. Called by C++ on the thread that put or got.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import sys
import types

__all__ = ["array_from_buffer", "dumps", "dumps_closed", "import_ahead", "loads"]

_PROTOCOL = 5
_EXPLAIN_STEPS = 500  # attempts to find the culprit in a value that cannot be pickled
_EXPLAIN_DEPTH = 20


def dumps(value) -> tuple:
    """(pickle, buffers). Raises TypeError that names the culprit if the value cannot be pickled."""
    try:
        buffers: list = []
        data = _fast_dumps(value, buffers.append)
        if data is not None:
            return data, [_raw(buffer) for buffer in buffers]
    except Exception:
        pass  # cloudpickle knows more, and if it fails too, its error is the one to report
    buffers = []
    try:
        data = _cloud_dumps(value, buffers.append)
        return data, [_raw(buffer) for buffer in buffers]
    except Exception as error:
        raise _explained(value, "value", error) from _cause(error)


def dumps_closed(value) -> bytes:
    """The value in one piece, buffers included. Raises what pickle raises."""
    return _cloud_dumps(value, None)


def loads(data, buffers) -> object:
    """The value again. What it takes from the buffers is as writable as they are: not at all."""
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:
        hint = ""
        if isinstance(error, ImportError):
            hint = "; the module must be importable here, or its classes be defined in the main program"
        raise pickle.UnpicklingError(
            f"a value could not be rebuilt in process {os.getpid()}: {type(error).__name__}: {error}{hint}"
        ) from error


def import_ahead() -> None:
    """Import what the first function or error will need. In the zygote, and in the driver while the daemon starts."""
    global _Pickler
    if _Pickler is None:
        _Pickler = _make_pickler()


# ---- pickling -------------------------------------------------------------------------------------------------------


def _raw(buffer):
    """The bytes in the order in which they lie in memory, also those of an array in Fortran order."""
    try:
        return buffer.raw()
    except BufferError:
        return memoryview(buffer).tobytes()  # not contiguous


def _fast_dumps(value, buffer_callback):
    """The C pickler; None if the result names things of __main__, which mean nothing in another process."""
    cloudpickle = sys.modules.get("cloudpickle")
    if cloudpickle is not None and cloudpickle.list_registry_pickle_by_value():
        return None
    if "numpy" in sys.modules:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, _PROTOCOL, buffer_callback=buffer_callback)
        pickler.dispatch_table = _dispatch_table()
        pickler.dump(value)
        data = file.getvalue()
    else:
        data = pickle.dumps(value, _PROTOCOL, buffer_callback=buffer_callback)
    return None if b"__main__" in data or b"__mp_main__" in data else data


_table: dict = {}
_table_made_from = -1


def _dispatch_table() -> dict:
    """copyreg's table and our way with arrays. Made again when a type was registered with copyreg."""
    global _table, _table_made_from
    if _table_made_from != len(copyreg.dispatch_table):
        numpy = sys.modules["numpy"]
        if not hasattr(numpy, "ndarray"):  # another thread is importing it
            return copyreg.dispatch_table
        _table = {**copyreg.dispatch_table, numpy.ndarray: _reduce_array}
        _table_made_from = len(copyreg.dispatch_table)
    return _table


def _reduce_array(array):
    """NumPy hands out the data of contiguous arrays only, and not of dates; we do for the others too."""
    dtype = array.dtype
    if dtype.kind in "mM":
        contiguous = array if array.flags.c_contiguous else array.copy(order="C")
        return _dates_from, (contiguous.view("i8"), dtype.str)
    if dtype.hasobject or array.flags.forc:
        return array.__reduce_ex__(_PROTOCOL)
    return array.copy(order="C").__reduce_ex__(_PROTOCOL)


def _dates_from(array, dtype):
    return array.view(dtype)


_Pickler = None


def _cloud_dumps(value, buffer_callback) -> bytes:
    import_ahead()
    file = io.BytesIO()
    _Pickler(file, _PROTOCOL, buffer_callback).dump(value)  # type: ignore[misc]
    return file.getvalue()


def _make_pickler():
    # Here and not at the top: importing cloudpickle takes tens of milliseconds.
    import cloudpickle  # type: ignore[import-untyped]

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            numpy = sys.modules.get("numpy")
            if numpy is not None and type(obj) is getattr(numpy, "ndarray", None):
                return _reduce_array(obj)
            return super().reducer_override(obj)

    return Pickler


# ---- arrays ---------------------------------------------------------------------------------------------------------

_dtypes: dict = {}


def array_from_buffer(buffer, dtype_descr: str, shape: tuple, fortran: bool):
    """A read-only array over the memory of the store. It keeps the buffer, and by it the object, alive."""
    dtype = _dtypes.get(dtype_descr)
    if dtype is None:
        import numpy

        if dtype_descr.startswith("{"):
            from ._layouts import dtype_of

            dtype = dtype_of(dtype_descr)
        else:
            dtype = numpy.dtype(dtype_descr)
        if len(_dtypes) > 1000:
            _dtypes.clear()
        _dtypes[dtype_descr] = dtype
    array = sys.modules["numpy"].ndarray(shape, dtype, buffer, order="F" if fortran else "C")
    if array.flags.writeable:
        array.flags.writeable = False
    return array


# ---- saying what was wrong ------------------------------------------------------------------------------------------


def _cause(error: BaseException):
    """The user's own exception, from a __reduce__ or __getstate__, is worth showing; pickle's say no more than we."""
    return None if isinstance(error, (pickle.PicklingError, TypeError, RecursionError)) else error


def _explained(value, what: str, error: BaseException) -> TypeError:
    """A TypeError that says which part of the value cannot be pickled, why, and what to do."""
    if isinstance(error, RecursionError) or "recursion" in str(error):
        return TypeError(
            f"the {what} of type {type(value).__name__} cannot be pickled: it is nested too deeply; "
            "flatten it (a long linked list, for example, into a list)"
        )
    has_name = isinstance(value, type) or type(value).__name__ == "function"
    path, culprit, reason = _find_culprit(value, value.__qualname__ if has_name else what, error)
    subject = _type_name(value) if has_name else f"{what} of type {_type_name(value)}"
    part = "it" if culprit is value else f"{_type_name(culprit)}, found at {path},"
    if what.startswith("result"):
        advice = "Leave it out (__getstate__), or return what is needed to make it again"
    else:
        advice = "Make it inside the task instead, leave it out (__getstate__), or pass what is needed to make it again"
    return TypeError(
        f"the {subject} cannot be sent to another process: {part} cannot be pickled "
        f"({type(reason).__name__}: {reason}). {advice}"
    )


def why_no_result(value, task: str, error: BaseException) -> BaseException:
    """What the caller is told of a result that could not be encoded. Called by C++."""
    if not isinstance(error, TypeError) or "cannot be sent to another process" not in str(error):
        return error
    try:
        _cloud_dumps(value, lambda _: False)
    except Exception as again:
        explained = _explained(value, f"result of task '{task}',", again)
        explained.__cause__ = _cause(again)
        return explained
    return error


def _type_name(value) -> str:
    cls = type(value)
    if cls.__name__ == "function":
        return f"function {value.__qualname__!r}"
    if isinstance(value, type):
        return f"class {value.__qualname__!r}"
    return repr(
        cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    )


def _find_culprit(value, path: str, error: BaseException) -> tuple:
    """The smallest part that fails by itself: (path to it, the part, its error)."""
    steps = _EXPLAIN_STEPS
    seen = set()
    for _ in range(_EXPLAIN_DEPTH):
        seen.add(id(value))
        for step, part in _parts(value):
            if id(part) in seen or isinstance(part, (str, bytes, int, float, type(None))):
                continue
            steps -= 1
            if steps < 0:
                return path, value, error
            try:
                _cloud_dumps(part, lambda _: False)
            except Exception as part_error:
                value, path, error = part, path + step, part_error
                break
        else:
            break
    return path, value, error


def _parts(value):
    """The direct parts of a value with how one would write the way to them."""
    if isinstance(value, dict):
        for key, part in list(value.items()):
            yield f"[{_short(key)}]", part
            yield f" (key {_short(key)})", key
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield f" (element {_short(part)})", part
    elif type(value).__name__ == "function":
        yield from function_parts(value)
    elif isinstance(value, type):
        for name, part in list(vars(value).items()):
            if isinstance(part, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                continue  # of the class itself, which is made again
            part = getattr(part, "__func__", getattr(part, "fget", part))
            yield f".{name}", part
    else:
        function = getattr(value, "__func__", None)
        if function is not None:
            yield ".__self__", getattr(value, "__self__", None)
            yield ".__func__", function
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for name, part in list(attributes.items()):
                yield f".{name}", part
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    yield f".{name}", getattr(value, name)


def function_parts(function):
    """What travels with a function: closure variables, the globals that its code names, defaults."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield f" (closure variable {name!r})", cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in sorted(_global_names(code)):
        if name in function.__globals__:
            yield f" (global variable {name!r})", function.__globals__[name]
    for part in function.__defaults__ or ():
        yield " (default argument)", part
    for name, part in (function.__kwdefaults__ or {}).items():
        yield f" (default of {name!r})", part


def _global_names(code) -> set:
    names = set(code.co_names)
    for constant in code.co_consts:
        if type(constant) is type(code):
            names |= _global_names(constant)
    return names


def _short(value) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
