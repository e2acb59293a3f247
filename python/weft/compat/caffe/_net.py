"""caffe.Net: a net that Caffe computes, with its blobs as NumPy arrays.

Arrays are views of Caffe's memory, which they keep. A net belongs to the process that made it and is used by one thread
at a time: a task makes one, an actor keeps one.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict

from . import _files
from ._library import BYTES, check, library, made, text

__all__ = ["Blob", "Layer", "Net"]

_INPUTS, _OUTPUTS = 0, 1  # CfSide
_ROOM = 64


def _numbers(function, *arguments) -> list:
    """What a function writes that says how many numbers there are."""
    room = _ROOM
    while True:
        numbers = (ctypes.c_int * room)()
        count = function(*arguments, numbers, room)
        if count <= room:
            return list(numbers[:count])
        room = count


class _Native:
    """Caffe's net. Deleted when nobody has the Net, a blob of it or an array any more."""

    def __init__(self, handle):
        self.handle = made(handle)

    def __del__(self):
        if getattr(self, "handle", None):
            library().cf_delete_net(self.handle)


class _Memory:
    """Keeps elements of a blob while an array looks at them.

    The blob may have new ones after it was reshaped. Those of a Data layer belong to the net, not to the blob.
    """

    def __init__(self, blob, gradients: bool, native: _Native):
        self.native = native
        address = ctypes.c_void_p()
        self.handle = made(library().cf_memory(blob, int(gradients), ctypes.byref(address)))
        self.address = address.value

    def __del__(self):
        if getattr(self, "handle", None):
            library().cf_delete_memory(self.handle)


class Blob:
    """An array of floats in a net, `data`, and its gradients, `diff`; both can be written to."""

    def __init__(self, handle, native: _Native):
        self._native = native
        self._handle = made(handle)

    def __del__(self):
        if getattr(self, "_handle", None):
            library().cf_delete_blob(self._handle)

    @property
    def shape(self) -> tuple:
        return tuple(_numbers(library().cf_shape, self._handle))

    @property
    def count(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count

    def _array(self, gradients: bool):
        import numpy

        shape, count = self.shape, self.count
        if not count:
            return numpy.empty(shape, numpy.float32)
        memory = _Memory(self._handle, gradients, self._native)
        elements = (ctypes.c_float * count).from_address(memory.address)
        elements.memory = memory  # the array keeps the elements, and these the memory
        return numpy.frombuffer(elements, numpy.float32).reshape(shape)

    @property
    def data(self):
        return self._array(False)

    @property
    def diff(self):
        return self._array(True)

    def reshape(self, *shape) -> None:
        """Changes the shape; layers behind learn of it by Net.reshape() or by the next forward()."""
        lengths = (ctypes.c_int * len(shape))(*shape)
        check(library().cf_set_shape(self._handle, lengths, len(shape)))

    def _legacy(self, index: int) -> int:
        shape = (self.shape + (1, 1, 1, 1))[: max(4, len(self.shape))]
        return shape[index]

    num = property(lambda self: self._legacy(0))
    channels = property(lambda self: self._legacy(1))
    height = property(lambda self: self._legacy(2))
    width = property(lambda self: self._legacy(3))


class Layer:
    """One layer of a net: its type, and the blobs that it learns."""

    def __init__(self, type_name: str, blobs: list):
        self.type, self.blobs = type_name, blobs


class Net:
    """Net(net, phase, weights=None): a prototxt or a NetParameter; caffe.TRAIN or caffe.TEST; a caffemodel.

    Also Net(net, weights, phase), as it was called before.
    """

    def __init__(self, net, *arguments, phase=None, weights=None, level=0, stages=None):
        for argument in arguments:
            if isinstance(argument, (str, os.PathLike)) and weights is None:
                weights = argument
            elif isinstance(argument, int) and phase is None:
                phase = argument
            else:
                raise TypeError(f"Net takes a net, a phase and a path of weights; {argument!r} is one too many")
        if phase not in (0, 1):
            raise TypeError("Net needs a phase, caffe.TRAIN or caffe.TEST")
        message = _files.read_net(net)
        if level:
            message.state.level = level
        message.state.stage.extend(stages or ())
        if weights is not None:
            weights = _files.existing(weights, "caffemodel")
        data = message.SerializeToString()
        self._begin(library().cf_new_net(data, len(data), BYTES, phase))
        if weights is not None:
            self.copy_from(weights)

    @classmethod
    def _of(cls, handle) -> Net:
        """A net that belongs to a solver as well."""
        net = cls.__new__(cls)
        net._begin(handle)
        return net

    def _begin(self, handle) -> None:
        native = self._native = _Native(handle)
        self._handle = handle
        c = library()
        layers = range(c.cf_layer_count(handle))
        self._layer_names = [c.cf_layer_name(handle, i).decode() for i in layers]
        names = [c.cf_blob_name(handle, i).decode() for i in range(c.cf_blob_count(handle))]
        self._blob_names = names
        self.blobs = OrderedDict((name, Blob(c.cf_blob(handle, i), native)) for i, name in enumerate(names))
        self.layers = [
            Layer(
                c.cf_layer_type(handle, i).decode(),
                [Blob(c.cf_param(handle, i, k), native) for k in range(c.cf_param_count(handle, i))],
            )
            for i in layers
        ]
        self.layer_dict = OrderedDict(zip(self._layer_names, self.layers))
        self.params = OrderedDict((name, layer.blobs) for name, layer in self.layer_dict.items() if layer.blobs)
        self.inputs = [names[i] for i in _numbers(c.cf_ends, handle, _INPUTS)]
        self.outputs = [names[i] for i in _numbers(c.cf_ends, handle, _OUTPUTS)]
        self.bottom_names = OrderedDict((name, self._ends(i, _INPUTS)) for i, name in enumerate(self._layer_names))
        self.top_names = OrderedDict((name, self._ends(i, _OUTPUTS)) for i, name in enumerate(self._layer_names))

    def __reduce__(self):
        raise TypeError("a caffe.Net stays in its process: keep it in an actor, or send its weights (save, copy_from)")

    def _ends(self, layer: int, side: int) -> list:
        return [self._blob_names[i] for i in _numbers(library().cf_layer_ends, self._handle, layer, side)]

    def _index(self, layer) -> int:
        if layer not in self.layer_dict:
            raise KeyError(f"the net has no layer {layer!r}")
        return self._layer_names.index(layer)

    def _fill(self, names, arrays: dict, gradients: bool) -> None:
        if set(arrays) != set(names):
            raise ValueError(f"the net takes {', '.join(names) or 'no inputs'}, not {', '.join(arrays)}")
        for name, array in arrays.items():
            target = self.blobs[name].diff if gradients else self.blobs[name].data
            shape = getattr(array, "shape", None)
            if shape != target.shape:
                raise ValueError(f"blob {name!r} has the shape {target.shape}, not {shape}; reshape it first")
            target[...] = array

    def forward(self, blobs=None, start=None, end=None, **inputs) -> dict:
        """Computes from the layer `start` to `end`, both included; gives the outputs by name, and `blobs` besides.

        Inputs are given by name, or were written to net.blobs[name].data. The arrays are views, to which the next
        forward() writes.
        """
        if inputs:
            self._fill(self.inputs, inputs, gradients=False)
        first = 0 if start is None else self._index(start)
        last = len(self._layer_names) - 1 if end is None else self._index(end)
        check(library().cf_forward(self._handle, first, last, ctypes.byref(ctypes.c_float())))
        outputs = self.outputs if end is None else self.top_names[end]
        return {name: self.blobs[name].data for name in [*outputs, *(blobs or ())]}

    def backward(self, diffs=None, start=None, end=None, **gradients) -> dict:
        """Computes gradients from the layer `start` back to `end`; gives those of the inputs, and `diffs` besides.

        Those of the outputs are given by name, unless they are losses. Gradients of parameters are added up until
        clear_param_diffs().
        """
        if gradients:
            self._fill(self.outputs, gradients, gradients=True)
        first = len(self._layer_names) - 1 if start is None else self._index(start)
        last = 0 if end is None else self._index(end)
        check(library().cf_backward(self._handle, first, last))
        inputs = self.inputs if end is None else self.bottom_names[end]
        return {name: self.blobs[name].diff for name in [*inputs, *(diffs or ())]}

    def clear_param_diffs(self) -> None:
        check(library().cf_clear_gradients(self._handle))

    def reshape(self) -> None:
        """Makes all layers fit the shapes of the inputs."""
        check(library().cf_reshape(self._handle))

    def copy_from(self, path) -> None:
        """Weights of the layers of the same name, from a caffemodel. Raises ValueError for one of another net."""
        path = _files.existing(path, "caffemodel")
        _files.check_weights(path, {name: [blob.shape for blob in blobs] for name, blobs in self.params.items()})
        check(library().cf_copy_from(self._handle, text(path)))

    def save(self, path) -> None:
        """Writes net and weights as a caffemodel."""
        check(library().cf_save(self._handle, text(path)))

    def share_with(self, other: Net) -> None:
        """From now on the layers of the same name use the weights of the other net, which is in this process."""
        check(library().cf_share_with(self._handle, other._handle))
