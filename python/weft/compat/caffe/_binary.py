"""Protobuf's binary form of a message: written and read. Fields that the schema does not know are skipped.

Raises DecodeError for bytes that are none, with the path of the field and the position in its message.
"""

from __future__ import annotations

import struct

from ._message import Enum, Field, Message

__all__ = ["DecodeError", "read", "written"]

_FIXED = {"float": ("f", 5, 4), "double": ("d", 1, 8)}  # format, wire type, size
_MASK = (1 << 64) - 1


class DecodeError(ValueError):
    """Bytes that are not such a message."""


def _varint(number: int) -> bytes:
    number &= _MASK  # negative ones are written as 64 bits
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _wire_type(field: Field) -> int:
    if field.kind in _FIXED:
        return _FIXED[field.kind][1]
    return 2 if field.is_message or field.kind in ("string", "bytes") else 0


def _one(field: Field, value) -> bytes:
    if field.kind in _FIXED:
        return struct.pack("<" + _FIXED[field.kind][0], value)
    if _wire_type(field) == 0:
        return _varint(int(value))
    if field.is_message:
        value = written(value)
    elif field.kind == "string":
        value = value.encode()
    return _varint(len(value)) + value


def written(message: Message) -> bytes:
    parts = []
    for field, value in message.ListFields():
        if field.packed:
            if field.kind in _FIXED:
                data = struct.pack(f"<{len(value)}{_FIXED[field.kind][0]}", *value)
            else:
                data = b"".join(_one(field, item) for item in value)
            parts += [_varint(field.number << 3 | 2), _varint(len(data)), data]
        else:
            key = _varint(field.number << 3 | _wire_type(field))
            for item in value if field.repeated else (value,):
                parts += [key, _one(field, item)]
    return b"".join(parts)


class _Reader:
    def __init__(self, data, path: str):
        self.data, self.position, self.path = data, 0, path

    def fail(self, why: str):
        raise DecodeError(f"not a message of Caffe: {self.path}, byte {self.position}: {why}")

    def varint(self) -> int:
        result = shift = 0
        while True:
            if self.position >= len(self.data) or shift > 63:
                self.fail("a number is cut off")
            byte = self.data[self.position]
            self.position += 1
            result |= (byte & 127) << shift
            if byte < 128:
                return result & _MASK
            shift += 7

    def take(self, size: int):
        if self.position + size > len(self.data):
            self.fail(f"{size} bytes were announced, {len(self.data) - self.position} are there")
        taken = self.data[self.position : self.position + size]
        self.position += size
        return taken

    def skip(self, wire_type: int) -> None:
        if wire_type == 0:
            self.varint()
        elif wire_type in (1, 5):
            self.take(8 if wire_type == 1 else 4)
        elif wire_type == 2:
            self.take(self.varint())
        else:
            self.fail(f"there is no wire type {wire_type} in Caffe's messages")

    def number(self, field: Field):
        if field.kind in _FIXED:
            form, _, size = _FIXED[field.kind]
            return struct.unpack("<" + form, self.take(size))[0]
        value = self.varint()
        if field.kind == "bool":
            return bool(value)
        if field.kind in ("int32", "int64") or isinstance(field.type, Enum):
            value = value - (1 << 64) if value >> 63 else value
        if field.kind == "int32":
            value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
        return value


def read(message: Message, data, without=(), path: str = "") -> None:
    """Adds what the bytes say to the message. Fields that are named in `without` are skipped, at every depth."""
    path = path or type(message).__name__
    reader = _Reader(memoryview(data), path)
    numbers = {field.number: field for field in message.FIELDS.values()}
    message._touch()
    while reader.position < len(reader.data):
        key = reader.varint()
        field = numbers.get(key >> 3)
        if field is None or field.name in without:
            if key >> 3 == 0:
                reader.fail("a field has the number 0")
            reader.skip(key & 7)
        else:
            _read_field(message, field, key & 7, reader, without)


def _read_field(message: Message, field: Field, wire_type: int, reader: _Reader, without) -> None:
    name = f"{reader.path}.{field.name}"
    expected = _wire_type(field)
    if wire_type == 2 and expected != 2 and field.repeated:  # packed, whether the schema says so or not
        inner = _Reader(reader.take(reader.varint()), name)
        items = []
        if field.kind in _FIXED:
            form, _, size = _FIXED[field.kind]
            if len(inner.data) % size:
                inner.fail(f"its length is no multiple of {size}")
            items = struct.unpack(f"<{len(inner.data) // size}{form}", inner.data)
        else:
            while inner.position < len(inner.data):
                items.append(inner.number(field))
        getattr(message, field.name)._items.extend(items)
        return
    if wire_type != expected:
        reader.fail(f"field {field.name} has the wire type {wire_type}, not {expected}")
    if expected != 2:
        value = reader.number(field)
    else:
        data = reader.take(reader.varint())
        if field.is_message:
            value = field.type() if field.repeated else getattr(message, field.name)
            read(value, data, without, name)
            if field.repeated:
                getattr(message, field.name)._items.append(value)
            return
        value = bytes(data)
        if field.kind == "string":
            value = value.decode(errors="replace")
    if field.repeated:
        getattr(message, field.name)._items.append(value)
    else:
        message._values[field.name] = value
