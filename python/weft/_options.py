"""The options of remote functions, actors and methods: types, ranges and defaults, checked where they are written.

All three classes are immutable. C++ reads their attributes once, at the first call, so nothing here is on the path of
a call.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .util.scheduling_strategies import NodeAffinity

__all__ = [
    "RESOURCE_UNIT",
    "ActorOptions",
    "MethodOptions",
    "TaskOptions",
    "check_any",
    "check_bytes",
    "check_labels",
    "check_name",
    "check_resource_amount",
    "check_resources",
    "nearest",
]

RESOURCE_UNIT = 10_000  # amounts are counted in 1/10,000, as src/wire/messages.h does
_MAX_AMOUNT = 1_000_000_000  # keeps every sum of amounts far from the end of int64
_MAX_BYTES = 1 << 60
_MAX_RETURNS = 10_000  # each return costs an entry in the owner's table whether it is used or not
_MAX_RETRIES = 2**31 - 1
_MAX_NAME = 1_000
_MAX_RESOURCES = 50  # kMaxOwnResources
_MAX_RESOURCE_NAME = 256  # kMaxResourceNameBytes
_MAX_CONCURRENCY = 1_000_000
_MAX_GROUPS = 1_000
_MAX_MERGED = 32  # changed copies that one set of options remembers
_ASYNC_CONCURRENCY = 1_000
_MAX_LABEL = 100
_MAX_PLACEMENT = 4096  # kMaxPlacementBytes
_LABEL_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

# Options of later versions with the values that mean "not wanted".
_NOT_YET = {
    "max_calls": (0,),
    "runtime_env": ({},),
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


def _bytes_of(text: str) -> int:
    """In UTF-8; 0 if it has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def check_resources(where: str, value) -> dict[str, float]:
    """Custom resources by name."""
    if not isinstance(value, dict):
        raise TypeError(f'{where} must be a dict such as {{"disk": 1}}, not {_show(value)} of type {_type_name(value)}')
    if len(value) > _MAX_RESOURCES:
        raise ValueError(f"{where} can name at most {_MAX_RESOURCES} resources, not {len(value)}")
    checked = {}
    for key, amount in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{where}: names must be strings, not {_show(key)} of type {_type_name(key)}")
        if not 0 < _bytes_of(key) <= _MAX_RESOURCE_NAME or "\0" in key or key.startswith("~"):
            raise ValueError(
                f"{where}: {_show(key)} is no name: 1 to {_MAX_RESOURCE_NAME} bytes of UTF-8, none of them NUL, the "
                "first no ~"
            )
        if key in _RESERVED_RESOURCES:
            raise ValueError(f"{where}: write {_RESERVED_RESOURCES[key]}= instead of a resource named {key!r}")
        checked[key] = check_resource_amount(f"{where}[{key!r}]", amount)
    return checked


def check_labels(where: str, value) -> dict[str, str]:
    """Labels of a node by key."""
    if not isinstance(value, dict):
        raise TypeError(
            f'{where} must be a dict such as {{"zone": "eu"}}, not {_show(value)} of type {_type_name(value)}'
        )
    for key, text in value.items():
        _check_label_key(where, key)
        _check_label_value(where, key, text)
    return dict(value)


def _check_label_key(where: str, key) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where}: keys must be strings, not {_show(key)} of type {_type_name(key)}")
    if not 1 <= len(key) <= _MAX_LABEL or key.strip(_LABEL_CHARACTERS + "/"):
        raise ValueError(f"{where}: {_show(key)} is no key: 1 to {_MAX_LABEL} letters, digits and . _ - /")
    return key


def _check_label_value(where: str, key: str, text) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{where}[{key!r}] must be a string, not {_show(text)} of type {_type_name(text)}")
    if len(text) > _MAX_LABEL or text.strip(_LABEL_CHARACTERS):
        raise ValueError(f"{where}[{key!r}]: {_show(text)} is no value: at most {_MAX_LABEL} letters, digits and . _ -")
    return text


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


def check_name(where: str, value) -> str:
    """A text that names something."""
    if not isinstance(value, str):
        raise TypeError(f"{where} must be a string, not {_show(value)} of type {_type_name(value)}")
    if not value or len(value.encode(errors="replace")) > _MAX_NAME or "\0" in value:
        raise ValueError(f"{where} must have 1 to {_MAX_NAME} bytes of UTF-8, none of them NUL, not {_show(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} must be text that can be written as UTF-8, not {_show(value)}") from None
    return value


def _check_bool(where: str, value) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{where} must be True or False, not {_show(value)} of type {_type_name(value)}")
    return value


def _check_tries(where: str, value) -> int:
    """How often something is done again: 0 never, -1 for ever."""
    return _check_int(where, value, -1, _MAX_RETRIES)


def _check_strategy(where: str, value):
    if isinstance(value, str):
        if value in ("DEFAULT", "SPREAD"):
            return value
        raise ValueError(f'{where} must be "DEFAULT", "SPREAD" or a NodeAffinity, not {_show(value)}')
    from .util.scheduling_strategies import NodeAffinity

    if isinstance(value, NodeAffinity):
        return value
    raise NotImplementedError(
        f'{where}={_show(value)}: strategies other than "DEFAULT", "SPREAD" and NodeAffinity '
        "(weft.util.scheduling_strategies), such as placement groups, are not yet available in this version"
    )


def _check_selector(where: str, value) -> dict[str, str]:
    """What nodes' labels must be: {"zone": "eu", "disk": "in(ssd,nvme)", "gpu": "!a100", "rack": "*", "old": "!*"}."""
    if not isinstance(value, dict):
        raise TypeError(
            f'{where} must be a dict such as {{"zone": "eu"}}, not {_show(value)} of type {_type_name(value)}'
        )
    for key, text in value.items():
        _check_label_key(where, key)
        if not isinstance(text, str):
            raise TypeError(f"{where}[{key!r}] must be a string, not {_show(text)} of type {_type_name(text)}")
        for item in _selected_values(text):
            _check_label_value(where, key, item)
    return dict(sorted(value.items()))


def _selected_values(text: str) -> list:
    """The values in one entry of a selector, without what is done with them."""
    text = text[1:] if text.startswith("!") else text
    if text == "*":
        return []
    if text.startswith("in(") and text.endswith(")"):
        return [item.strip() for item in text[3:-1].split(",")]
    return [text]


def _placement(strategy, selector: dict) -> str:
    """Where a lease is wanted, as src/wire/placement.h has it; "" if anywhere."""
    name = "~"
    if strategy == "SPREAD":
        name += "spread"
    elif strategy is not None and strategy != "DEFAULT":
        name += f"{'node~' if strategy.soft else 'node'}:{strategy.node_id}"
    conditions = []
    for key, text in selector.items():
        values = _selected_values(text)
        negated = text.startswith("!")
        if values:
            conditions.append(f"{key}{'!=' if negated else '='}{','.join(values)}")
        else:
            conditions.append(f"!{key}" if negated else key)
    if conditions:
        name += "?" + "&".join(conditions)
    if len(name) > _MAX_PLACEMENT:
        raise ValueError(f"label_selector is too long: at most about {_MAX_PLACEMENT} characters in all")
    return name if len(name) > 1 else ""


def _check_lifetime(where: str, value) -> str:
    if not isinstance(value, str):
        raise TypeError(
            f'{where} must be "detached", "non_detached" or None, not {_show(value)} of type {_type_name(value)}'
        )
    if value not in ("detached", "non_detached"):
        raise ValueError(f'{where} must be "detached", "non_detached" or None, not {_show(value)}')
    return value


def _check_groups(where: str, value) -> dict[str, int]:
    """Concurrency groups: how many calls of each may run at once."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, dict) for item in value):
        # The form of the C++ front ends of others: [{"name": "io", "max_concurrency": 2}].
        value = {item.get("name"): item.get("max_concurrency") for item in value}
    if not isinstance(value, dict):
        raise TypeError(
            f'{where} must be a dict such as {{"io": 2, "compute": 4}}, not {_show(value)} of type {_type_name(value)}'
        )
    if len(value) > _MAX_GROUPS:
        raise ValueError(f"{where} must have at most {_MAX_GROUPS} groups, not {len(value)}")
    return {
        check_name(f"{where}: a group's name", group): _check_int(f"{where}[{group!r}]", limit, 1, _MAX_CONCURRENCY)
        for group, limit in value.items()
    }


_CHECKS = {
    "num_cpus": check_resource_amount,
    "num_gpus": check_resource_amount,
    "resources": check_resources,
    "memory": check_bytes,
    "num_returns": _check_num_returns,
    "max_retries": _check_tries,
    "retry_exceptions": _check_retry_exceptions,
    "name": check_name,
    "scheduling_strategy": _check_strategy,
    "label_selector": _check_selector,
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
    "scheduling_strategy": None,
    "label_selector": {},
}
_ACTOR_CHECKS = {
    "num_cpus": check_resource_amount,
    "num_gpus": check_resource_amount,
    "resources": check_resources,
    "memory": check_bytes,
    "max_restarts": _check_tries,
    "max_task_retries": _check_tries,
    "retry_exceptions": _check_retry_exceptions,
    "max_concurrency": lambda where, value: _check_int(where, value, 1, _MAX_CONCURRENCY),
    "concurrency_groups": _check_groups,
    "max_pending_calls": _check_tries,
    "name": check_name,
    "namespace": check_name,
    "lifetime": _check_lifetime,
    "get_if_exists": _check_bool,
    "allow_out_of_order_execution": _check_bool,
    "scheduling_strategy": _check_strategy,
    "label_selector": _check_selector,
}
_METHOD_CHECKS = {
    "num_returns": _check_num_returns,
    "max_task_retries": _check_tries,
    "retry_exceptions": _check_retry_exceptions,
    "concurrency_group": check_name,
    "name": check_name,
}
_FUNCTIONS, _ACTORS, _METHODS = "remote functions", "actors", "methods of actors"
_ALL_CHECKS = {_FUNCTIONS: _CHECKS, _ACTORS: _ACTOR_CHECKS, _METHODS: _METHOD_CHECKS}
# Options that have other names elsewhere.
_ADVICE = {
    (_ACTORS, "max_retries"): "max_restarts=, and for its calls max_task_retries=",
    (_ACTORS, "num_returns"): "@weft.method(num_returns=...) at the method, or handle.method.options(num_returns=...)",
    (_ACTORS, "concurrency_group"): "concurrency_groups= here, and @weft.method(concurrency_group=...) at the method",
    (_METHODS, "max_retries"): "max_task_retries=",
    (_METHODS, "concurrency_groups"): "concurrency_group=",
}


def _checked(given: dict, kind: str = _FUNCTIONS) -> dict:
    """The options that were given, checked; None means "the default" and is left out."""
    checked = {}
    checks = _ALL_CHECKS[kind]
    for option, value in given.items():
        check = checks.get(option)
        if check is None:
            if kind != _METHODS and option in _NOT_YET and (value is None or value in _NOT_YET[option]):
                continue
            raise _refusal(option, kind)
        if value is not None:
            checked[option] = check(option, value)
    return checked


def _refusal(option: str, kind: str) -> Exception:
    if option in _NOT_YET:
        return NotImplementedError(f"the option {option!r} of {kind} is not yet available in this version")
    checks = _ALL_CHECKS[kind]
    advice = _ADVICE.get((kind, option))
    if advice is not None:
        return TypeError(f"{kind} have no option {option!r}; write {advice}")
    for other, known in _ALL_CHECKS.items():
        if option in known:
            return TypeError(f"the option {option!r} is for {other}; {kind} have {', '.join(checks)}")
    return TypeError(f"{kind} have no option {option!r}{nearest(option, checks)}")


def check_any(given: dict) -> None:
    """Options of which it is not yet known whether they are for a function or a class."""
    for option, value in given.items():
        check = _CHECKS.get(option) or _ACTOR_CHECKS.get(option)
        if check is not None:
            if value is not None:
                check(option, value)
        elif option in _NOT_YET:
            _checked({option: value})
        elif (_ACTORS, option) in _ADVICE:
            raise _refusal(option, _ACTORS)
        else:
            raise TypeError(
                f"remote functions and actors have no option {option!r}{nearest(option, {**_CHECKS, **_ACTOR_CHECKS})}"
            )


def _retry_payload(retry_exceptions) -> bytes:
    """What a worker needs to decide about a retry: nothing, everything, or the pickled classes."""
    if retry_exceptions is False:
        return b""
    if retry_exceptions is True:
        return b"*"
    if isinstance(retry_exceptions, bytes):  # options that came from another process
        return retry_exceptions
    from . import _serialization

    return _serialization.dumps_closed(retry_exceptions)


class _Options:
    """What the options of functions, actors and methods share. Immutable; `merged` makes a changed copy."""

    __slots__ = ("_copies", "given")

    _KIND = ""
    _DEFAULTS: dict = {}

    given: dict  # what was asked for; the rest are defaults
    _copies: dict

    def __init__(self, **given):
        self._fill(_checked(given, self._KIND))

    def _fill(self, checked: dict) -> None:
        put = object.__setattr__
        put(self, "given", checked)
        put(self, "_copies", {})
        for option, default in self._DEFAULTS.items():
            put(self, option, checked.get(option, default))

    def merged(self, given: dict):
        """These options with some replaced; one given as None goes back to its default.

        Copies are remembered, because C++ keeps what it read by the identity of the options.
        """
        try:
            key = tuple((option, type(value), value) for option, value in given.items())
            known = self._copies.get(key)
        except TypeError:  # a dict or list among them: not remembered
            key = known = None
        if known is not None:
            return known
        checked = _checked(given, self._KIND)
        kept = {option: value for option, value in self.given.items() if option not in given}
        merged = object.__new__(type(self))
        merged._fill({**kept, **checked})
        if key is not None:
            if len(self._copies) >= _MAX_MERGED:
                self._copies.clear()
            self._copies[key] = merged
        return merged

    def __setattr__(self, name, value):
        raise AttributeError(f"options cannot be changed; use .options({name}=...) to get a changed copy")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __reduce__(self):
        return _rebuild, (self.given, type(self))

    def __eq__(self, other):
        return self.given == other.given if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        given = ", ".join(f"{option}={value!r}" for option, value in self.given.items())
        return f"{type(self).__name__}({given})"


class TaskOptions(_Options):
    """The options of one remote function."""

    __slots__ = (
        "label_selector",
        "max_retries",
        "memory",
        "name",
        "num_cpus",
        "num_gpus",
        "num_returns",
        "placement",
        "resources",
        "retry_exceptions",
        "retry_payload",
        "scheduling_strategy",
    )
    _KIND = _FUNCTIONS
    _DEFAULTS = _DEFAULTS

    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    memory: int
    num_returns: int
    max_retries: int  # -1: for ever
    retry_exceptions: bool | tuple
    retry_payload: bytes  # retry_exceptions for the worker: b"" never, b"*" always, else the pickled classes
    name: str | None
    scheduling_strategy: str | NodeAffinity | None
    label_selector: dict[str, str]
    placement: str  # both of them, by the name that C++ reads

    def _fill(self, checked: dict) -> None:
        super()._fill(checked)
        object.__setattr__(self, "retry_payload", _retry_payload(self.retry_exceptions))
        object.__setattr__(self, "placement", _placement(self.scheduling_strategy, self.label_selector))


class ActorOptions(_Options):
    """The options with which actors of a class are made."""

    __slots__ = (
        "allow_out_of_order_execution",
        "concurrency_groups",
        "detached",
        "get_if_exists",
        "label_selector",
        "lifetime",
        "max_concurrency",
        "max_pending_calls",
        "max_restarts",
        "max_task_retries",
        "memory",
        "name",
        "namespace",
        "num_cpus",
        "num_gpus",
        "out_of_order",
        "placement",
        "placement_cpus",
        "resources",
        "retry_exceptions",
        "scheduling_strategy",
        "worker_blob",
    )
    _KIND = _ACTORS
    _DEFAULTS = {
        "num_cpus": 0.0,
        "num_gpus": 0.0,
        "resources": {},
        "memory": 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "retry_exceptions": False,
        "max_concurrency": None,
        "concurrency_groups": {},
        "max_pending_calls": -1,
        "name": None,
        "namespace": None,
        "lifetime": None,
        "get_if_exists": False,
        "allow_out_of_order_execution": False,
        "scheduling_strategy": None,
        "label_selector": {},
    }

    placement_cpus: float  # to find room for it; 1 if num_cpus was not given
    num_cpus: float  # held for life; 0 if not given
    num_gpus: float
    resources: dict[str, float]
    memory: int
    max_restarts: int  # -1: for ever
    max_task_retries: int  # of calls, unless their method says otherwise; -1: for ever
    retry_exceptions: bool | tuple  # of calls, unless their method says otherwise
    max_concurrency: int | None  # None: 1, or 1000 if the class has `async def` methods
    concurrency_groups: dict[str, int]
    max_pending_calls: int  # -1: any number
    name: str | None
    namespace: str | None  # None: that of the session
    lifetime: str | None
    detached: bool
    get_if_exists: bool
    allow_out_of_order_execution: bool
    out_of_order: bool  # the same, by the name that C++ reads
    scheduling_strategy: str | NodeAffinity | None
    label_selector: dict[str, str]
    placement: str  # as in TaskOptions
    worker_blob: bytes  # what the actor's worker needs to know; filled in by `for_class`

    def _fill(self, checked: dict) -> None:
        super()._fill(checked)
        put = object.__setattr__
        put(self, "placement_cpus", checked.get("num_cpus", 1.0))
        put(self, "detached", self.lifetime == "detached")
        put(self, "out_of_order", self.allow_out_of_order_execution)
        put(self, "placement", _placement(self.scheduling_strategy, self.label_selector))
        put(self, "worker_blob", b"")
        if self.max_pending_calls == 0:
            raise ValueError("max_pending_calls must be at least 1, or -1 for no limit, not 0")
        if self.get_if_exists and self.name is None:
            raise ValueError("get_if_exists=True needs a name: it asks for the actor of that name if there is one")

    def for_class(self, class_name: str, is_async: bool, namespace: str) -> ActorOptions:
        """A copy for the actors of one class in one namespace, complete as C++ wants it."""
        copy = object.__new__(ActorOptions)
        copy._fill(self.given)
        put = object.__setattr__
        if self.namespace is None:
            put(copy, "namespace", namespace)
        if self.max_concurrency is None:
            put(copy, "max_concurrency", _ASYNC_CONCURRENCY if is_async else 1)
        import pickle

        described = {
            "class_name": class_name,
            "is_async": is_async,
            "max_concurrency": copy.max_concurrency,
            "concurrency_groups": copy.concurrency_groups,
            "name": copy.name,
            "namespace": copy.namespace,
        }
        put(copy, "worker_blob", pickle.dumps(described, 5))
        return copy


class MethodOptions(_Options):
    """The options of one method of an actor class, or of one call of it."""

    __slots__ = (
        "concurrency_group",
        "max_args",
        "max_task_retries",
        "min_args",
        "name",
        "num_returns",
        "parameters",
        "retry_exceptions",
        "retry_payload",
    )
    _KIND = _METHODS
    _DEFAULTS = {
        "num_returns": 1,
        "max_task_retries": 0,
        "retry_exceptions": False,
        "concurrency_group": None,
        "name": None,
    }

    num_returns: int
    max_task_retries: int  # -1: for ever
    retry_exceptions: bool | tuple | bytes  # bytes: the payload, where the classes themselves are not needed
    retry_payload: bytes  # as in TaskOptions
    concurrency_group: str | None
    name: str | None  # of the calls, in messages and the timeline
    parameters: str | None  # as they stand between the parentheses of `def`, without self; None: not known
    min_args: int  # a call without keywords is right if it has between min_args
    max_args: int  # and max_args arguments (-1: any number); anything else is for weft._actor.check_arguments

    def _fill(self, checked: dict) -> None:
        super()._fill(checked)
        put = object.__setattr__
        put(self, "retry_payload", _retry_payload(self.retry_exceptions))
        put(self, "parameters", None)
        put(self, "min_args", 0)
        put(self, "max_args", -1)

    def with_parameters(self, parameters: str | None, min_args: int, max_args: int) -> MethodOptions:
        """These, for a method whose parameters are known. Only for options that are not in use yet."""
        put = object.__setattr__
        put(self, "parameters", parameters)
        put(self, "min_args", min_args)
        put(self, "max_args", max_args)
        return self

    def merged(self, given: dict) -> MethodOptions:
        return super().merged(given).with_parameters(self.parameters, self.min_args, self.max_args)

    def __reduce__(self):
        return _rebuild_method, (self.given, self.parameters, self.min_args, self.max_args)


def _rebuild(checked: dict, cls: type = TaskOptions):
    options = object.__new__(cls)
    options._fill(checked)
    return options


def _rebuild_method(checked: dict, parameters, min_args: int, max_args: int) -> MethodOptions:
    return _rebuild(checked, MethodOptions).with_parameters(parameters, min_args, max_args)
