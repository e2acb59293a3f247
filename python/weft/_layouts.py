"""How the struct elements of a NumPy array lie in memory, as text that C++ compares with its own structs.

    {x=<f4@0,y=<f4@4,id=<i8@8}16        name=type@offset, and the size of the whole
    {pos=<f8*3@0,child={a=|u1@0}1@24}32  <f8*3 is three in a row, as std::array; structs lie in structs

The format is that of docs/formats.md; C++ writes it in include/weft/array.h.
"""

from __future__ import annotations

__all__ = ["dtype_of", "layout_of"]

_MARKS = set("{}=,@*")
_layouts: dict = {}


def layout_of(dtype) -> str:
    """The text for a structured type, or "" if it holds what has no place in it (objects, text, dates, ...)."""
    text = _layouts.get(dtype)
    if text is None:
        text = _describe(dtype) or ""
        if text and dtype_of(text) != dtype:
            text = ""
        if len(_layouts) > 1000:
            _layouts.clear()
        _layouts[dtype] = text
    return text


def _describe(dtype):
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        inner = _describe(base)
        return inner and inner + "".join(f"*{length}" for length in reversed(shape))
    if dtype.fields is None:
        return dtype.str if dtype.kind in "biufc" else None
    fields = []
    for name in dtype.names:
        # A third entry is a title, which is a second name.
        if not name or _MARKS & set(name) or len(dtype.fields[name]) != 2:
            return None
        inner = _describe(dtype.fields[name][0])
        if not inner:
            return None
        fields.append(f"{name}={inner}@{dtype.fields[name][1]}")
    return "{" + ",".join(fields) + "}" + str(dtype.itemsize) if fields else None


def dtype_of(text: str):
    """The structured type that a text describes."""
    dtype, at = _parse(text, 0)
    if at != len(text):
        raise ValueError(f"weft: not the layout of a struct: {text!r}")
    return dtype


def _parse(text: str, at: int):
    import numpy

    if text[at] == "{":
        names, formats, offsets = [], [], []
        while text[at] != "}":
            end = text.index("=", at)
            names.append(text[at + 1 : end])
            inner, at = _parse(text, end + 1)
            if text[at] != "@":
                raise ValueError(f"weft: not the layout of a struct: {text!r}")
            offset, at = _number(text, at + 1)
            formats.append(inner)
            offsets.append(offset)
        size, at = _number(text, at + 1)
        dtype = numpy.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    else:
        end = at
        while end < len(text) and text[end] not in "*@,}":
            end += 1
        dtype, at = numpy.dtype(text[at:end]), end
    lengths = []
    while at < len(text) and text[at] == "*":
        length, at = _number(text, at + 1)
        lengths.append(length)
    return (numpy.dtype((dtype, tuple(reversed(lengths)))) if lengths else dtype), at


def _number(text: str, at: int):
    end = at
    while end < len(text) and text[end].isdigit():
        end += 1
    return int(text[at:end]), end
