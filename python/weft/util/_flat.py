"""Weights by name, and as one vector: what weft.util.weights and ray.experimental.TensorFlowVariables share.

Knows NumPy arrays only, and imports NumPy when it is called.
"""

from __future__ import annotations

import weft

__all__ = ["check_shapes", "join", "listed", "size_of", "split"]

_MANY = 6  # names in a message
_STORED_BYTES = 16 << 10  # larger values are in the store, not in messages (kMaxInlineBytes)


def size_of(shape) -> int:
    size = 1
    for length in shape:
        size *= int(length)
    return size


def listed(names) -> str:
    """Names for a message."""
    names = [repr(name) for name in names]
    if not names:
        return "no names"
    return ", ".join(names[:_MANY]) + (f" and {len(names) - _MANY} more" if len(names) > _MANY else "")


def dtype_of(dtypes):
    """The type of a vector for arrays of these: the widest of those with fractions, if there are any. Counters and the
    like are carried in it, as nobody wants 100 MB of weights doubled for one of them."""
    import numpy

    dtypes = list(dtypes)
    fractions = [dtype for dtype in dtypes if numpy.issubdtype(dtype, numpy.inexact)]
    return numpy.result_type(*(fractions or dtypes)) if dtypes else numpy.dtype("float32")


def join(arrays: list):
    """One vector of all of these (name, array). A large one is made in the store: `put`, and `return` in a task, then
    copy nothing, and every process of the machine reads the same memory."""
    import numpy

    arrays = [(name, numpy.asarray(array)) for name, array in arrays]
    dtype = dtype_of(array.dtype for _, array in arrays)
    size = sum(array.size for _, array in arrays)
    if size * dtype.itemsize > _STORED_BYTES and weft.is_initialized():
        vector = weft.empty(size, dtype)
    else:
        vector = numpy.empty(size, dtype)
    at = 0
    for name, array in arrays:
        part = vector[at : at + array.size].reshape(array.shape)
        part[...] = array
        if array.dtype != dtype and not numpy.issubdtype(array.dtype, numpy.inexact) and (part != array).any():
            raise ValueError(
                f"the weight {name!r} ({array.dtype}) has numbers that a vector of {dtype} cannot hold exactly; use "
                "get_weights and set_weights"
            )
        at += array.size
    del part, array  # views would keep `put` from taking the vector as it is
    return vector


def split(vector, shapes: dict, error=ValueError) -> dict:
    """Views of the parts of a vector, by name. Raises `error` if it has another length."""
    import numpy

    vector = numpy.asarray(vector)
    size = sum(size_of(shape) for shape in shapes.values())
    if vector.ndim != 1 or vector.size != size:
        raise error(
            f"set_flat takes a vector of all {size} weights, as get_flat gives it; this one has the shape "
            f"{vector.shape}"
        )
    parts, at = {}, 0
    for name, shape in shapes.items():
        parts[name] = vector[at : at + size_of(shape)].reshape(shape)
        at += size_of(shape)
    return parts


def check_shapes(values: dict, shapes: dict) -> dict:
    """The values as arrays. Raises ValueError, naming those that do not fit."""
    import numpy

    values = {name: numpy.asarray(value) for name, value in values.items()}
    wrong = [
        f"{name!r} has the shape {value.shape}, the network's has {shapes[name]}"
        for name, value in values.items()
        if value.shape != tuple(shapes[name])
    ] + [f"{name!r} is of {value.dtype}" for name, value in values.items() if value.dtype.kind in "OSU"]
    if wrong:
        more = f" (and {len(wrong) - _MANY} more)" if len(wrong) > _MANY else ""
        raise ValueError(f"weights that do not fit, none was set: {'; '.join(wrong[:_MANY])}{more}")
    return values
