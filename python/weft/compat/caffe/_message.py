"""Messages of Caffe's schema, used like those that protobuf makes: fields are attributes with types and defaults.

A field that is set to a wrong type raises TypeError or ValueError with its name; an unknown one AttributeError. A
message inside of another is there as soon as it is read, and counts as set when something in it was set. Messages are
pickled as bytes and can be compared. _text has their text form, _binary their bytes.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import MutableSequence

from ._schema import SCHEMA

__all__ = ["ENUMS", "MESSAGES", "Enum", "Field", "Message", "Repeated", "suggestion"]

_RANGES = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint32": (0, (1 << 32) - 1),
    "uint64": (0, (1 << 64) - 1),
}
_FALSE_DEFAULTS = {"bool": False, "string": "", "bytes": b"", "float": 0.0, "double": 0.0}


def suggestion(name: str, known) -> str:
    """`; did you mean 'x'?`, if a known name looks like this one."""
    close = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


class Enum:
    """Names and numbers of an enumeration, with protobuf's methods."""

    def __init__(self, name: str, numbers: dict):
        self.name = name
        self._numbers = numbers

    def Value(self, name: str) -> int:
        if name not in self._numbers:
            raise ValueError(f"{self.name} has no value {name!r}: it has {', '.join(self._numbers)}")
        return self._numbers[name]

    def Name(self, number: int) -> str:
        for name, value in self._numbers.items():
            if value == number:
                return name
        raise ValueError(f"{self.name} has no value {number}")

    def keys(self) -> list:
        return list(self._numbers)

    def values(self) -> list:
        return list(self._numbers.values())

    def items(self) -> list:
        return list(self._numbers.items())


class Field:
    """One field of a message: what may be in it."""

    __slots__ = ("default", "kind", "name", "number", "packed", "repeated", "type")

    def __init__(self, number: int, name: str, kind: str, repeated: bool, packed: bool):
        self.number, self.name, self.kind, self.repeated, self.packed = number, name, kind, repeated, packed
        self.type = None  # of an enumeration or a message
        self.default = _FALSE_DEFAULTS.get(kind, 0)

    @property
    def is_message(self) -> bool:
        return isinstance(self.type, type)

    def checked(self, value, where: str):
        """The value as it is kept: floats as 32 bits can have them, enumerations as numbers."""
        if isinstance(self.type, Enum):
            if isinstance(value, str):
                return self.type.Value(value)
            value = self._integer(value, where, _RANGES["int32"])
            self.type.Name(value)
            return value
        if self.is_message:
            if not isinstance(value, self.type):
                raise TypeError(f"{where} is a {self.type.__name__}, not {value!r}")
            return value
        if self.kind in _RANGES:
            return self._integer(value, where, _RANGES[self.kind])
        if self.kind == "bool":
            if value not in (0, 1):  # also True and False, and those of NumPy
                raise TypeError(f"{where} is a bool, not {value!r}")
            return bool(value)
        if self.kind in ("float", "double"):
            try:
                value = float(value) if not isinstance(value, (str, bytes)) else None
            except (TypeError, ValueError):
                value = None
            if value is None:
                raise TypeError(f"{where} is a number, not what it was set to")
            if self.kind == "double":
                return value
            try:
                return struct.unpack("<f", struct.pack("<f", value))[0]
            except OverflowError:
                return float("inf") if value > 0 else float("-inf")
        if self.kind == "string":
            if isinstance(value, bytes):
                value = value.decode()
            if not isinstance(value, str):
                raise TypeError(f"{where} is a string, not {value!r}")
            return value
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(f"{where} is bytes, not {type(value).__name__}")
        return bytes(value)

    def _integer(self, value, where: str, bounds: tuple) -> int:
        try:
            number = value.__index__()
        except (AttributeError, TypeError):
            raise TypeError(f"{where} is a whole number, not {value!r}") from None
        if not bounds[0] <= number <= bounds[1]:
            raise ValueError(
                f"{where} is {self.kind if self.type is None else 'int32'}, for which {number} is too large"
            )
        return number


class Repeated(MutableSequence):
    """A repeated field: a list whose items are checked."""

    def __init__(self, owner: Message, field: Field):
        self._owner, self._field, self._items = owner, field, []

    def _checked(self, value):
        return self._field.checked(value, f"{type(self._owner).__name__}.{self._field.name}")

    def add(self, **fields):
        """A new message at the end, which is returned."""
        message = self._field.type(**fields)
        self.append(message)
        return message

    def insert(self, index, value):
        self._items.insert(index, self._checked(value))
        self._owner._touch()

    def extend(self, values):
        self._items.extend([self._checked(value) for value in values])
        self._owner._touch()

    def MergeFrom(self, other):
        self.extend(_copied(value) for value in other)

    def __getitem__(self, index):
        return self._items[index]

    def __setitem__(self, index, value):
        self._items[index] = [self._checked(v) for v in value] if isinstance(index, slice) else self._checked(value)
        self._owner._touch()

    def __delitem__(self, index):
        del self._items[index]

    def __len__(self):
        return len(self._items)

    def __eq__(self, other):
        return self._items == (other._items if isinstance(other, Repeated) else other)

    __hash__ = None

    def __repr__(self):
        return repr(self._items)


def _copied(value):
    if not isinstance(value, Message):
        return value
    copy = type(value)()
    copy.MergeFrom(value)
    return copy


class Message:
    """What all messages share. Field names are attributes; the methods are named as protobuf names them."""

    __slots__ = ("_lines", "_owner", "_values")
    FIELDS: dict = {}

    def __init__(self, **fields):
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_owner", None)
        object.__setattr__(self, "_lines", {})  # where a field stood in the text that was parsed
        for name, value in fields.items():
            field = self._field(name)
            if field.repeated:
                getattr(self, name).extend(value)
            elif field.is_message:
                getattr(self, name).CopyFrom(value)
            else:
                setattr(self, name, value)

    @classmethod
    def _field(cls, name: str) -> Field:
        try:
            return cls.FIELDS[name]
        except KeyError:
            raise AttributeError(f"{cls.__name__} has no field {name!r}{suggestion(name, cls.FIELDS)}") from None

    def _touch(self) -> None:
        """Something in this message was set, so it counts as set in the one that it belongs to."""
        owner = self._owner
        if owner is not None:
            object.__setattr__(self, "_owner", None)
            parent, name = owner
            parent._values[name] = self
            parent._touch()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        field = self._field(name)
        values = self._values
        if name in values:
            return values[name]
        if field.repeated:
            values[name] = Repeated(self, field)
            return values[name]
        if field.is_message:
            child = field.type()
            object.__setattr__(child, "_owner", (self, name))
            return child
        return field.default

    def __setattr__(self, name, value):
        field = self._field(name)
        if field.repeated or field.is_message:
            how = "extend() it" if field.repeated else "use CopyFrom()"
            raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned to; {how}")
        self._values[name] = field.checked(value, f"{type(self).__name__}.{name}")
        self._touch()

    def ListFields(self) -> list:
        """Pairs of field and value for all that are set, in the order of their numbers."""
        pairs = []
        for name, value in self._values.items():
            if not isinstance(value, Repeated) or len(value):
                pairs.append((self.FIELDS[name], value))
        return sorted(pairs, key=lambda pair: pair[0].number)

    def HasField(self, name: str) -> bool:
        if self._field(name).repeated:
            raise ValueError(f"{type(self).__name__}.{name} is repeated: it has a length instead")
        return name in self._values

    def ClearField(self, name: str) -> None:
        self._field(name)
        self._values.pop(name, None)

    def Clear(self) -> None:
        self._values.clear()

    def SetInParent(self) -> None:
        self._touch()

    def MergeFrom(self, other) -> None:
        if type(other) is not type(self):
            raise TypeError(f"a {type(self).__name__} cannot be merged with a {type(other).__name__}")
        for field, value in other.ListFields():
            if field.repeated:
                getattr(self, field.name).MergeFrom(value)
            elif field.is_message:
                child = getattr(self, field.name)
                child._touch()
                child.MergeFrom(value)
            else:
                setattr(self, field.name, value)
        self._lines.update(other._lines)
        self._touch()

    def CopyFrom(self, other) -> None:
        if other is not self:
            self.Clear()
            self.MergeFrom(other)

    def SerializeToString(self) -> bytes:
        from . import _binary

        return _binary.written(self)

    def ParseFromString(self, data: bytes) -> int:
        self.Clear()
        return self.MergeFromString(data)

    def MergeFromString(self, data: bytes) -> int:
        from . import _binary

        _binary.read(self, data)
        return len(data)

    @classmethod
    def FromString(cls, data: bytes):
        message = cls()
        message.MergeFromString(data)
        return message

    def ByteSize(self) -> int:
        return len(self.SerializeToString())

    def IsInitialized(self) -> bool:
        return True  # no field of the schema is required

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return self.ListFields() == other.ListFields()

    __hash__ = None

    def __str__(self):
        from . import _text

        return _text.written(self)

    __repr__ = __str__

    def __dir__(self):
        return [*super().__dir__(), *self.FIELDS]

    def __copy__(self):
        return _copied(self)

    def __deepcopy__(self, memo):
        return _copied(self)

    def __reduce__(self):
        return _unpickled, (type(self).__name__, self.SerializeToString())


def _unpickled(name: str, data: bytes) -> Message:
    return MESSAGES[name].FromString(data)


def _default(field: Field, text: str):
    if isinstance(field.type, Enum):
        return field.type.Value(text)
    if field.kind in ("string", "bool"):
        return {"true": True, "false": False}[text] if field.kind == "bool" else text.strip('"')
    return field.checked(float(text) if field.kind in ("float", "double") else int(text), field.name)


def _made() -> tuple:
    """Classes for all messages of the schema, and its enumerations that stand outside of messages."""
    messages, enums, defaults = {}, {}, []
    current: type = Message
    for line in SCHEMA.strip().replace("\n    ", " ").splitlines():
        words = line.split()
        if words[0] == "message":
            current = type(
                words[1], (Message,), {"__slots__": (), "FIELDS": {}, "__module__": "weft.compat.caffe.proto.caffe_pb2"}
            )
            messages[words[1]] = current
        elif words[0] == "enum":
            numbers = {name: int(number) for name, number in (word.split("=") for word in words[2:])}
            enum = Enum(words[1], numbers)
            if line.startswith(" "):
                setattr(current, words[1], enum)
                for name, number in numbers.items():
                    setattr(current, name, number)
            else:
                enums[words[1]] = enum
        else:
            kind = words[2].rstrip("*")
            field = Field(int(words[0]), words[1], kind, words[2] != kind, "packed" in words[3:])
            current.FIELDS[field.name] = field
            defaults.append((current, field, words[-1] if "=" in words else None))
    for owner, field, text in defaults:
        field.type = getattr(owner, field.kind, None) or enums.get(field.kind) or messages.get(field.kind)
        if not isinstance(field.type, (Enum, type)):
            field.type = None
        if isinstance(field.type, Enum):
            field.default = field.type.values()[0]
        if text is not None:
            field.default = _default(field, text)
    return messages, enums


MESSAGES, ENUMS = _made()
