"""The text form of Caffe's messages: functions of google.protobuf.text_format, which does not know these classes."""

from .._text import ParseError, parse, written

__all__ = ["Merge", "MessageToString", "Parse", "ParseError"]


def Parse(text, message):
    """Sets the message to what the text says, and returns it. Raises ParseError with line, column and field."""
    message.Clear()
    return Merge(text, message)


def Merge(text, message):
    return parse(text.decode() if isinstance(text, bytes) else text, message)


def MessageToString(message) -> str:
    return written(message)
