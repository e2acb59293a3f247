"""How exceptions travel from a worker to the process that gets the result.

The worker packs an exception (`pack_exception`): its class, arguments and attributes, and its traceback as text
without weft's own frames. The other side rebuilds it (`task_error`) as an instance of both the original class and
TaskError: a class made for the pair, once per original class. No constructor of the user's is called on the way,
because constructors with arguments of their own are the classic way for an exception not to arrive.
An exception that was packed once (a task got it from another task) keeps its first packing and gains a traceback.

Nothing here is called for a task that succeeds.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys

from . import exceptions
from .exceptions import TaskError

TYPE_CHECKING = False  # importing typing takes milliseconds
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "ActorExit",
    "RemoteTraceback",
    "pack_exception",
    "raise_system_error",
    "raise_task_error",
    "should_retry",
    "system_error",
    "task_error",
]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made by a class statement, not written in C
_SIZE = struct.Struct("<I")
_FROM_CPP = "it is an exception of C++"  # as src/api_cpp/cpp_runner.cc says why it has no body
# An error travels inside one frame (src/transport/ring.h allows 256 kB): it must arrive also when the store is full.
_MAX_TEXT = 20_000  # characters of the traceback, and of the message
_MAX_BODY = 40_000  # bytes of the pickled exception; of a larger one only the text of its large parts is sent
_MAX_PART = 2_000  # characters of the text of such a part
_MAX_SHOWN = 4_000  # characters of the traceback inside the message of an error that was caused by an exception
_INTERNAL = "_weft_packed"


class RemoteTraceback(Exception):
    """Stands above a task's exception as its cause, so that the worker's traceback is printed with it."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self):
        return "\n" + self.text.rstrip()


RemoteTraceback.__module__ = "weft"  # it is printed, and users do not care where it is defined


class ActorExit(SystemExit):
    """Raised by exit_actor(). A SystemExit, so that no `except Exception` of the user's keeps the actor alive."""


class _Packed:
    """What travels: a native tuple (docs/formats.md), which other languages read as far as it concerns them."""

    __slots__ = ("bases", "body", "function_name", "message", "pid", "text", "type_name", "why_not")

    def __init__(self, type_name, message, function_name, pid, text, bases, body, why_not):
        self.type_name = type_name
        self.message = message
        self.function_name = function_name
        self.pid = pid
        self.text = text  # the traceback
        self.bases = bases  # names of the classes above its class
        self.body = body  # the pickled class and state, or None
        self.why_not = why_not  # why there is no body

    def dumps(self) -> bytes:
        fields = (self.type_name, self.message, self.function_name, self.pid, self.text, self.bases, self.body)
        return b"\1\x09" + _SIZE.pack(8) + b"".join(map(_item, (*fields, self.why_not)))


def _item(value) -> bytes:
    if value is None:
        return b"\0"
    if isinstance(value, int):
        return b"\4" + value.to_bytes(8, "little", signed=True)
    if isinstance(value, list):
        return b"\x0a" + _SIZE.pack(len(value)) + b"".join(map(_item, value))
    tag, data = (b"\x08", value) if isinstance(value, bytes) else (b"\x07", value.encode("utf-8", "backslashreplace"))
    return tag + _SIZE.pack(len(data)) + data


def _read_item(data: bytes, at: int):
    tag, at = data[at], at + 1
    if tag == 0:
        return None, at
    if tag in (3, 4):
        end = at + (1 if tag == 3 else 8)
        return int.from_bytes(data[at:end], "little", signed=True), end
    (size,) = _SIZE.unpack_from(data, at)
    at += 4
    if tag in (9, 10):
        items = []
        for _ in range(size):
            item, at = _read_item(data, at)
            items.append(item)
        return items, at
    content = data[at : at + size]
    return content if tag == 8 else content.decode("utf-8", "backslashreplace"), at + size


def _loads(data: bytes) -> _Packed:
    if data[:1] != b"\1":
        raise ValueError("weft: an error's bytes are not a description")
    return _Packed(*_read_item(data, 1)[0])


# ---- in the worker --------------------------------------------------------------------------------------------------


def pack_exception(exc: BaseException, function_name: str, pid: int) -> bytes:
    """The exception as bytes. Called by C++ in the worker, never raises."""
    try:
        return _pack(exc, function_name, pid).dumps()
    except BaseException as error:  # out of memory, a class whose every method raises, ...
        why = f"{type(error).__name__} while it was packed"
        text = f"In task {function_name} (pid {pid}): {type(exc).__name__} (its traceback could not be formatted)\n"
        return _Packed(type(exc).__name__, "", str(function_name), int(pid), text, [], None, why).dumps()


def _pack(exc: BaseException, function_name: str, pid: int) -> _Packed:
    text = f"In task {function_name} (pid {pid}):\n{_format(exc)}"
    earlier = getattr(exc, "__dict__", {}).get(_INTERNAL)
    if isinstance(earlier, _Packed):
        first = (earlier.type_name, earlier.message)
        why_not = "" if earlier.why_not == _FROM_CPP else earlier.why_not
        return _Packed(*first, function_name, pid, text, earlier.bases, earlier.body, why_not)
    body, why_not = None, ""
    try:
        body = _dump_body(exc)
    except BaseException as error:
        why_not = f"{type(error).__name__}: {_str(error)}"
    bases = [_full_name(base) for base in type(exc).__mro__[1:-1]][:32]
    return _Packed(_full_name(type(exc)), _str(exc), function_name, pid, text, bases, body, why_not)


def _format(exc: BaseException) -> str:
    """The traceback, causes and contexts included, without the frames of weft."""
    import traceback

    try:
        formatted = traceback.TracebackException(type(exc), exc, exc.__traceback__)
        _drop_own_frames(formatted, set())
        text = "".join(formatted.format())
    except Exception as error:
        text = f"{_full_name(type(exc))}: {_str(exc)}\n(its traceback could not be formatted: {type(error).__name__})\n"
    return _shortened(text, _MAX_TEXT)


def _shortened(text: str, limit: int) -> str:
    """The text with about `limit` characters: of a longer one its middle is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"


def _drop_own_frames(formatted, seen: set) -> None:
    if formatted is None or id(formatted) in seen:
        return
    seen.add(id(formatted))
    stack = formatted.stack
    if stack is not None:
        stack[:] = [frame for frame in stack if not frame.filename.startswith(_PACKAGE)]
    _drop_own_frames(formatted.__cause__, seen)
    _drop_own_frames(formatted.__context__, seen)
    for inner in getattr(formatted, "exceptions", None) or ():
        _drop_own_frames(inner, seen)


def _full_name(cls: type) -> str:
    module = getattr(cls, "__module__", "builtins")
    name = getattr(cls, "__qualname__", cls.__name__)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _str(exc: BaseException) -> str:
    try:
        return str(exc)[:_MAX_TEXT]
    except BaseException as error:
        return f"<str() of it raised {type(error).__name__}>"


def _dump_body(exc: BaseException) -> bytes:
    from ._serialization import dumps_closed

    cls = type(exc)
    if _pickles_itself(cls):
        try:
            data = dumps_closed(("whole", exc))
            if len(data) <= _MAX_BODY and type(pickle.loads(data)[1]) is cls:
                return data
        except Exception:
            pass  # its class matters more than its own way of pickling, so go on without that
    args = exc.args if isinstance(exc.args, tuple) else ()
    state = ("parts", cls, args, _members(exc), dict(getattr(exc, "__dict__", {})))
    try:
        data = dumps_closed(state)
        if len(data) <= _MAX_BODY:
            return data
    except Exception:
        dumps_closed(cls)  # raises if it is the class that cannot be pickled
    # Some of its parts cannot be pickled or are large. Keep the others, and the text of these.
    data = dumps_closed(("parts", cls, tuple(map(_or_text, args)), _salvaged(state[3]), _salvaged(state[4])))
    if len(data) > _MAX_BODY:
        raise ValueError(f"it is too large ({len(data)} bytes)")
    return data


def _pickles_itself(cls: type) -> bool:
    """Whether the class, or one it inherits from, says how its instances are pickled."""
    for base in cls.__mro__:
        if not base.__flags__ & _HEAP_TYPE:
            return False
        if {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__"} & base.__dict__.keys():
            return True
    return False


def _members(exc: BaseException) -> dict:
    """What does not live in __dict__: slots, and the fields of exceptions that are written in C (errno, code, ...)."""
    found = {}
    for base in type(exc).__mro__:
        if base in (BaseException, Exception, object):
            continue
        for name, descriptor in base.__dict__.items():
            # AttributeError.obj is the object that lacked the attribute: Python does not pickle it either.
            if name in found or name in ("__dict__", "__weakref__") or (name == "obj" and base is AttributeError):
                continue
            if type(descriptor).__name__ in ("member_descriptor", "getset_descriptor"):
                try:
                    found[name] = descriptor.__get__(exc)
                except Exception:
                    continue  # a slot that was never filled
    return found


def _or_text(value):
    from ._serialization import dumps_closed

    try:
        if len(dumps_closed(value)) <= _MAX_PART:
            return value
    except Exception:
        pass
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = f"<{type(value).__name__} object>"
    return text if len(text) <= _MAX_PART else text[: _MAX_PART - 3] + "..."


def _salvaged(values: dict) -> dict:
    return {name: _or_text(value) for name, value in values.items()}


def should_retry(exc: BaseException, retry_payload: bytes) -> bool:
    """Whether `retry_exceptions` asks for another try after this exception. Called by C++ in the worker."""
    if not retry_payload:
        return False
    if retry_payload == b"*":
        return isinstance(exc, Exception)
    try:
        return isinstance(exc, pickle.loads(retry_payload))
    except Exception:
        return False


# ---- where the result is asked for ----------------------------------------------------------------------------------


def raise_task_error(payload) -> None:
    """Raises the exception that a task raised. Called by C++."""
    raise task_error(payload)


def task_error(payload) -> BaseException:
    """The exception that a task raised: an instance of its class and of TaskError. Never raises."""
    packed = _loads(payload)
    if packed.why_not == _FROM_CPP:
        where = f"In task {packed.function_name} (pid {packed.pid}):\n"
        packed.text = f"{where}{packed.type_name}: {packed.message}\n{packed.text}\n"
    error = None
    if packed.body is not None:
        try:
            error = _rebuild(packed.body)
        except Exception as why:
            packed.why_not = f"{type(why).__name__}: {_str(why)}"
    if error is None:
        error = _plain_task_error(packed)
    _describe(error, packed)
    _set(error, "__cause__", RemoteTraceback(packed.text))  # and with it __suppress_context__
    if isinstance(error, SystemExit):
        # It would end the driver without a message if the program does not catch it.
        import logging

        logging.getLogger("weft").warning(
            "task %s (pid %d) called sys.exit(%r); the SystemExit is raised where its result was asked for",
            packed.function_name,
            packed.pid,
            error.code,
        )
    return error


def _set(error: BaseException, name: str, value) -> None:
    """As BaseException does it: a class may have a __setattr__ of its own that refuses."""
    BaseException.__dict__[name].__set__(error, value)


def _describe(error: BaseException, packed: _Packed) -> None:
    values = {
        "function_name": packed.function_name,
        "pid": packed.pid,
        "remote_traceback": packed.text,
        "cause_type": packed.type_name,
        _INTERNAL: packed,
    }
    for name, value in values.items():
        # Straight into __dict__, for the same reason. An attribute of the user's by this name goes first.
        error.__dict__.setdefault(name, value)


def _plain_task_error(packed: _Packed) -> TaskError:
    message = f"{packed.type_name}: {packed.message}" if packed.message else packed.type_name
    if packed.why_not == _FROM_CPP:
        return TaskError(f"{message} (thrown by task {packed.function_name}, pid {packed.pid})")
    return TaskError(
        f"{message} (raised by task {packed.function_name}, pid {packed.pid}; this is only its text, because the "
        f"exception itself could not be rebuilt here: {packed.why_not or 'it came from another language'})"
    )


def _rebuild(body: bytes) -> BaseException:
    content = pickle.loads(body)
    if content[0] == "whole":
        original = content[1]
        cls, args = type(original), original.args
        members, attributes = _members(original), dict(getattr(original, "__dict__", {}))
    else:
        _, cls, args, members, attributes = content
    made_for = _class_for(cls)
    base: Any = made_for
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    # The constructors of the C class only: it sets up its fields from the arguments, and the user's are not called.
    try:
        error = base.__new__(made_for, *args)
    except TypeError:
        error = base.__new__(made_for)
    try:
        base.__init__(error, *args)
    except Exception:
        pass  # it wanted keywords or other arguments; its fields follow
    for name, value in members.items():
        descriptor = _descriptor(cls, name)
        try:
            # None may mean that the field was never filled, and filling it with None is not the same: OSError("x")
            # would print as "[Errno None] None".
            if value is not None or descriptor.__get__(error) is not None:
                descriptor.__set__(error, value)
        except Exception:
            continue  # a field that is read-only is right already
    error.__dict__.update(attributes)
    _set(error, "args", args)
    return error


def _descriptor(cls: type, name: str):
    for base in cls.__mro__:
        if type(base.__dict__.get(name)).__name__ in ("member_descriptor", "getset_descriptor"):
            return base.__dict__[name]
    return None


class _Carrier:
    """First base of the classes made here: keeps what a user's class does to its subclasses out of our way."""

    __slots__ = ()

    def __init_subclass__(cls, **_):
        pass

    def __reduce_ex__(self, protocol):
        return task_error, (self.__dict__[_INTERNAL].dumps(),)


_classes: dict = {}  # original class -> the class for the pair; weak would not help, the pair refers to the original


def _class_for(cls: type) -> type:
    if issubclass(cls, TaskError):
        return cls
    made = _classes.get(cls)
    if made is None:
        namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        # type.__new__ and not the class's own metaclass call: that may register, refuse or want arguments.
        bases = (_Carrier, TaskError) if issubclass(TaskError, cls) else (_Carrier, cls, TaskError)
        made = type.__new__(type(cls), cls.__name__, bases, namespace)
        if len(_classes) > 1000:  # classes defined in a loop must not pile up for ever
            _classes.clear()
        _classes[cls] = made
    return made


# ---- failures of the system -----------------------------------------------------------------------------------------


def system_error(kind: str, message: str, cause: bytes = b"") -> BaseException:
    """The exception of weft.exceptions with that name. cause: the packed exception of user code that led to it."""
    cls = getattr(exceptions, kind, None)
    if not (isinstance(cls, type) and issubclass(cls, exceptions.WeftError)):
        cls, message = exceptions.WeftError, f"{kind}: {message}"
    if not cause:
        return cls(message)
    packed = _loads(cause)
    message = f"{message}. The exception: {packed.type_name}: {packed.message[:_MAX_PART]}"
    trace = _shortened(packed.text.strip(), _MAX_SHOWN)
    error = cls(f"{message}\n{trace}" if trace else message)
    _set(error, "__cause__", task_error(cause))
    return error


def raise_system_error(kind: str, message: str, cause: bytes = b"") -> None:
    """Raises what the system, not the user's code, has to report. Called by C++."""
    raise system_error(kind, message, cause)


def own_frame(filename: str) -> bool:
    """Whether a frame belongs to weft."""
    return filename.startswith(_PACKAGE)


def user_stacklevel() -> int:
    """For warnings.warn in a function called from here: the level of the first frame that is the user's."""
    level = 1
    frame: Any = sys._getframe(1)
    while frame is not None and own_frame(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level
