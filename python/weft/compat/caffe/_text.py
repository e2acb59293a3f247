"""Protobuf's text form of a message, in which prototxt files are written: printed and parsed.

What cannot be parsed raises ParseError with line, column and the path of the field. The lines of fields are kept in the
messages (`_lines`), so that later checks can name them.
"""

from __future__ import annotations

import re
import struct

from ._message import Enum, Field, Message, suggestion

__all__ = ["ParseError", "parse", "written"]

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>-?\s*(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)(?![\w.]))
      | (?P<name>-?[A-Za-z_]\w*)
      | (?P<sign>[{}<>\[\]:,;])
      | (?P<wrong>.)""",
    re.X | re.S,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.S)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CLOSING = {"{": "}", "<": ">"}


class ParseError(ValueError):
    """Text that is not such a message. Has `line`, `column` and `field`, the path of the field."""

    def __init__(self, source: str, line: int, column: int, field: str, why: str):
        self.source, self.line, self.column, self.field, self.why = source, line, column, field, why
        super().__init__(f"{source}, line {line}, column {column}: {field + ': ' if field else ''}{why}")

    def __reduce__(self):
        return ParseError, (self.source, self.line, self.column, self.field, self.why)


def parse(text: str, message: Message, source: str = "text") -> Message:
    """Adds what the text says to the message and returns it. `source` names the text in errors."""
    _Parser(text, source).fields(message, None, "")
    return message


class _Parser:
    def __init__(self, text: str, source: str):
        self.source = source
        self.tokens = []  # kind, text, line, column
        line, start = 1, 0
        for found in _TOKEN.finditer(text):
            kind, word = found.lastgroup, found[0]
            if kind != "space":
                self.tokens.append((kind, word, line, found.start() - start + 1))
            if "\n" in word:
                line += word.count("\n")
                start = found.start() + word.rindex("\n") + 1
        self.tokens.append(("end", "", line, len(text) - start + 1))
        self.index = 0

    def fail(self, why: str, field: str = "", token=None):
        _, _, line, column = token or self.tokens[self.index]
        raise ParseError(self.source, line, column, field, why)

    def next(self, field: str = ""):
        token = self.tokens[self.index]
        if token[0] == "wrong":
            text = "a string is not closed" if token[1] in "\"'" else f"{token[1]!r} means nothing here"
            self.fail(text, field)
        self.index += token[0] != "end"
        return token

    def peek(self) -> str:
        return self.tokens[self.index][1] if self.tokens[self.index][0] == "sign" else ""

    def fields(self, message: Message, closing, path: str) -> None:
        while True:
            token = self.next(path)
            kind, word = token[:2]
            if word == closing and kind in ("sign", "end"):
                return
            if kind == "end":
                if closing is None:
                    return
                self.fail(f"the text ends, and {closing!r} is missing", path, token)
            if kind != "name":
                self.fail(f"the name of a field is expected, not {word!r}", path, token)
            self.field(message, token, path)
            if self.peek() in (",", ";"):
                self.next()

    def field(self, message: Message, token, path: str) -> None:
        name = token[1]
        field = message.FIELDS.get(name)
        inner = f"{path}.{name}" if path else name
        if field is None:
            known = type(message).__name__
            self.fail(f"{known} has no field {name!r}{suggestion(name, message.FIELDS)}", path, token)
        if not field.repeated and name in message._values:
            self.fail("stands here for the second time, but it is not repeated", inner, token)
        message._lines.setdefault(name, token[2])
        if self.peek() == ":":
            self.next()
        elif not field.is_message:
            self.fail(f"':' and a {field.kind} are expected, not {self.tokens[self.index][1]!r}", inner)
        if self.peek() == "[" and field.repeated:
            self.next()
            while self.peek() != "]":
                self.value(message, field, inner)
                if self.peek() not in (",", "]"):
                    self.fail("',' or ']' is expected", inner)
                if self.peek() == ",":
                    self.next()
            self.next()
        else:
            self.value(message, field, inner)

    def value(self, message: Message, field: Field, path: str) -> None:
        token = self.next(path)
        if field.is_message:
            if token[1] not in _CLOSING or token[0] != "sign":
                self.fail(f"'{{' is expected, since this is a {field.type.__name__}, not {token[1]!r}", path, token)
            child = getattr(message, field.name).add() if field.repeated else getattr(message, field.name)
            child._touch()
            child._lines[""] = token[2]
            self.fields(child, _CLOSING[token[1]], path)
            return
        try:
            value = self.scalar(field, token)
            if field.repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        except (TypeError, ValueError) as error:
            if isinstance(error, ParseError):
                raise
            self.fail(str(error), path, token)

    def scalar(self, field: Field, token):
        kind, word = token[:2]
        if field.kind in ("string", "bytes"):
            if kind != "string":
                raise ValueError(f"a string in quotes is expected, not {word or 'the end'!r}")
            data = _unescaped(word)
            while self.tokens[self.index][0] == "string":  # strings one after the other are one
                data += _unescaped(self.next()[1])
            return data if field.kind == "bytes" else data.decode(errors="replace")
        if isinstance(field.type, Enum):
            if kind == "number":
                return int(word, 0)
            if kind != "name":
                raise ValueError(f"one of {', '.join(field.type.keys())} is expected, not {word or 'the end'!r}")
            return field.type.Value(word)
        if field.kind == "bool":
            values = {"true": True, "True": True, "t": True, "1": True}
            values.update({"false": False, "False": False, "f": False, "0": False})
            if word not in values or kind == "string":
                raise ValueError(f"true or false is expected, not {word or 'the end'!r}")
            return values[word]
        if field.kind in ("float", "double"):
            if kind == "number":
                word = word.replace(" ", "")
                return float(int(word, 16)) if "x" in word.lower() else float(word.rstrip("fF"))
            if kind == "name" and re.fullmatch(r"-?(inf(inity)?|nan)f?", word.lower()):
                return float(word.rstrip("fF") if "in" not in word.lower() else word.lower().replace("ff", "f"))
            raise ValueError(f"a number is expected, not {word or 'the end'!r}")
        if kind != "number" or not re.fullmatch(r"-?\s*(0[xX][0-9a-fA-F]+|\d+)", word):
            raise ValueError(f"a whole number is expected, not {word or 'the end'!r}")
        word = word.replace(" ", "")
        octal = re.fullmatch(r"-?0[0-7]+", word)
        return int(word, 8 if octal else 16 if "x" in word.lower() else 10)


def _unescaped(quoted: str) -> bytes:
    def replaced(found) -> bytes:
        if found[1]:
            return bytes([int(found[1], 8) & 255])
        if found[2]:
            return bytes([int(found[2], 16)])
        return _LETTERS.get(found[3], found[3]).encode()

    out, end = b"", 0
    body = quoted[1:-1]
    for found in _ESCAPE.finditer(body):
        out += body[end : found.start()].encode() + replaced(found)
        end = found.end()
    return out + body[end:].encode()


def written(message: Message, indent: str = "") -> str:
    lines = []
    for field, value in message.ListFields():
        for item in value if field.repeated else (value,):
            if field.is_message:
                lines.append(f"{indent}{field.name} {{\n{written(item, indent + '  ')}{indent}}}\n")
            else:
                lines.append(f"{indent}{field.name}: {_scalar(field, item)}\n")
    return "".join(lines)


def _scalar(field: Field, value) -> str:
    if isinstance(field.type, Enum):
        return field.type.Name(value)
    if field.kind == "bool":
        return "true" if value else "false"
    if field.kind in ("string", "bytes"):
        data = value.encode() if field.kind == "string" else value
        out = []
        for byte in data:
            letter = chr(byte)
            if letter in "\\\"'":
                out.append("\\" + letter)
            elif 32 <= byte < 127:
                out.append(letter)
            else:
                out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(letter, f"\\{byte:03o}"))
        return '"' + "".join(out) + '"'
    if field.kind == "float":
        return _float(value)
    return repr(value)


def _float(value: float) -> str:
    """The shortest number that is read as the same 32 bits."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            break
    return text if any(letter in text for letter in ".en") else text + ".0"
