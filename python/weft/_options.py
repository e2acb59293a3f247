"""The options of remote functions: their types, ranges and defaults, checked where they are written.

`TaskOptions` is immutable. The C++ type RemoteFunction reads its attributes once, when it is made, so nothing here
is on the path of a call.
"""

from __future__ import annotations

__all__ = ["RESOURCE_UNIT", "TaskOptions", "check_bytes", "check_resource_amount", "check_resources", "nearest"]

RESOURCE_UNIT = 10_000  # amounts are counted in 1/10,000, as src/wire/messages.h does
_MAX_AMOUNT = 1_000_000_000  # keeps every sum of amounts far from the end of int64
_MAX_BYTES = 1 << 60
_MAX_RETURNS = 10_000  # each return costs an entry in the owner's table whether it is used or not
_MAX_RETRIES = 2**31 - 1
_MAX_NAME = 1_000

_NOT_YET = {
    "max_calls",
    "runtime_env",
    "scheduling_strategy",
    "label_selector",
}
_FOR_ACTORS = {
    "max_restarts",
    "max_task_retries",
    "max_concurrency",
    "concurrency_groups",
    "max_pending_calls",
    "namespace",
    "lifetime",
    "get_if_exists",
    "allow_out_of_order_execution",
}
_RESERVED_RESOURCES = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def nearest(name: str, known) -> str:
    """`; did you mean 'x'?` if some known name is close, else a list of all."""
    import difflib

    close = difflib.get_close_matches(name, sorted(known), n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return "; known are " + ", ".join(sorted(known))


def _type_name(value) -> str:
    return type(value).__name__


def _show(value) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{_type_name(value)} object>"
    return text if len(text) <= 200 else text[:200] + "..."


def _check_int(where: str, value, low: int, high: int) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{where} must be an integer, not {_show(value)} of type {_type_name(value)}")
    number = value.__index__()
    if not low <= number <= high:
        raise ValueError(f"{where} must be between {low} and {high}, not {_show(value)}")
    return number


def check_resource_amount(where: str, value) -> float:
    """A finite amount of at least 0, whole or fractional down to 1/10,000."""
    is_number = not isinstance(value, (bool, str, bytes, bytearray, complex)) and (
        hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    )
    if not is_number:
        raise TypeError(f"{where} must be a number, not {_show(value)} of type {_type_name(value)}")
    try:
        amount = float(value)
    except OverflowError:
        raise ValueError(f"{where} must be at most {_MAX_AMOUNT}, not {_show(value)}") from None
    except Exception:
        raise TypeError(f"{where} must be a number, not {_show(value)} of type {_type_name(value)}") from None
    if amount != amount:
        raise ValueError(f"{where} must be a number, not NaN")
    if amount < 0:
        raise ValueError(f"{where} must not be negative, but is {_show(value)}")
    if amount > _MAX_AMOUNT:
        raise ValueError(f"{where} must be at most {_MAX_AMOUNT}, not {_show(value)}")
    if 0 < amount * RESOURCE_UNIT < 1:
        raise ValueError(f"{where} is {_show(value)}, but the smallest amount is {1 / RESOURCE_UNIT}")
    return amount


def check_bytes(where: str, value) -> int:
    """A number of bytes, at least 0; a float without a fraction (1e9) will do."""
    if isinstance(value, float) and value == value and value.is_integer():
        value = int(value)
    return _check_int(where, value, 0, _MAX_BYTES)


def check_resources(where: str, value) -> dict[str, float]:
    """Custom resources by name."""
    if not isinstance(value, dict):
        raise TypeError(f'{where} must be a dict such as {{"disk": 1}}, not {_show(value)} of type {_type_name(value)}')
    checked = {}
    for key, amount in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{where}: names must be strings, not {_show(key)} of type {_type_name(key)}")
        if not key or len(key) > _MAX_NAME or "\0" in key:
            raise ValueError(f"{where}: {_show(key)} is no name: 1 to {_MAX_NAME} characters, none of them NUL")
        if key in _RESERVED_RESOURCES:
            raise ValueError(f"{where}: write {_RESERVED_RESOURCES[key]}= instead of a resource named {key!r}")
        checked[key] = check_resource_amount(f"{where}[{key!r}]", amount)
    return checked


def _check_num_returns(where: str, value) -> int:
    if isinstance(value, str) and value in ("streaming", "dynamic"):
        raise NotImplementedError(
            f"{where}={value!r} (a task that yields its results one by one) is not yet available in this version; "
            "give a number, and return that many values"
        )
    return _check_int(where, value, 0, _MAX_RETURNS)


def _check_retry_exceptions(where: str, value) -> bool | tuple:
    if isinstance(value, bool):
        return value
    if isinstance(value, type):
        value = (value,)
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise TypeError(
            f"{where} must be True, False or a list of exception classes, not {_show(value)} of type "
            f"{_type_name(value)}"
        )
    for item in value:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise TypeError(f"{where} must hold exception classes only, not {_show(item)}")
    return tuple(value) or False


def _check_name(where: str, value) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where} must be a string, not {_show(value)} of type {_type_name(value)}")
    if not value or len(value) > _MAX_NAME or "\0" in value:
        raise ValueError(f"{where} must have 1 to {_MAX_NAME} characters, none of them NUL, not {_show(value)}")
    return value


_CHECKS = {
    "num_cpus": check_resource_amount,
    "num_gpus": check_resource_amount,
    "resources": check_resources,
    "memory": check_bytes,
    "num_returns": _check_num_returns,
    "max_retries": lambda where, value: _check_int(where, value, 0, _MAX_RETRIES),
    "retry_exceptions": _check_retry_exceptions,
    "name": _check_name,
}
_DEFAULTS = {
    "num_cpus": 1.0,
    "num_gpus": 0.0,
    "resources": {},
    "memory": 0,
    "num_returns": 1,
    "max_retries": 3,
    "retry_exceptions": False,
    "name": None,
}


def _checked(given: dict) -> dict:
    """The options that were given, checked; None means "the default" and is left out."""
    checked = {}
    for option, value in given.items():
        check = _CHECKS.get(option)
        if check is None:
            raise _refusal(option)
        if value is not None:
            checked[option] = check(option, value)
    return checked


def _refusal(option: str) -> Exception:
    if option in _NOT_YET:
        return NotImplementedError(f"the option {option!r} of remote functions is not yet available in this version")
    if option in _FOR_ACTORS:
        return TypeError(f"the option {option!r} is for actors; remote functions have {', '.join(_CHECKS)}")
    return TypeError(f"remote functions have no option {option!r}{nearest(option, _CHECKS)}")


def _retry_payload(retry_exceptions) -> bytes:
    """What a worker needs to decide about a retry: nothing, everything, or the pickled classes."""
    if retry_exceptions is False:
        return b""
    if retry_exceptions is True:
        return b"*"
    from . import _serialization

    return _serialization.dumps_closed(retry_exceptions)


class TaskOptions:
    """The options of one remote function. Immutable; `merged` makes a changed copy."""

    __slots__ = (
        "given",
        "max_retries",
        "memory",
        "name",
        "num_cpus",
        "num_gpus",
        "num_returns",
        "resources",
        "retry_exceptions",
        "retry_payload",
    )

    given: dict  # what was asked for; the rest are defaults
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    memory: int
    num_returns: int
    max_retries: int
    retry_exceptions: bool | tuple
    retry_payload: bytes  # retry_exceptions for the worker: b"" never, b"*" always, else the pickled classes
    name: str | None

    def __init__(self, **given):
        self._fill(_checked(given))

    def _fill(self, checked: dict) -> None:
        put = object.__setattr__
        put(self, "given", checked)
        for option, default in _DEFAULTS.items():
            put(self, option, checked.get(option, default))
        put(self, "retry_payload", _retry_payload(self.retry_exceptions))

    def merged(self, given: dict) -> TaskOptions:
        """These options with some replaced; one given as None goes back to its default."""
        checked = _checked(given)
        kept = {option: value for option, value in self.given.items() if option not in given}
        merged = object.__new__(TaskOptions)
        merged._fill({**kept, **checked})
        return merged

    def __setattr__(self, name, value):
        raise AttributeError(f"options cannot be changed; use .options({name}=...) to get a changed copy")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __reduce__(self):
        return _rebuild, (self.given,)

    def __eq__(self, other):
        return self.given == other.given if isinstance(other, TaskOptions) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        return f"TaskOptions({', '.join(f'{option}={value!r}' for option, value in self.given.items())})"


def _rebuild(checked: dict) -> TaskOptions:
    options = object.__new__(TaskOptions)
    options._fill(checked)
    return options
