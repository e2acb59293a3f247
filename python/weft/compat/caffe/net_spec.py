"""Nets written in Python: layers are functions of blobs, and a net is what its last blobs depend on.

    n = NetSpec()
    n.data, n.label = L.Data(source="digits", backend=P.Data.LMDB, batch_size=64, ntop=2)
    n.score = L.InnerProduct(n.data, num_output=10)
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    print(n.to_proto())

Layers are named for the attribute of the NetSpec, or, by the function `to_proto`, for their type with a number. Makes a
caffe_pb2.NetParameter; whether the blobs fit is found out by Caffe itself.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from ._message import MESSAGES, Enum, Message, suggestion
from ._schema import LAYERS

__all__ = ["Function", "NetSpec", "Top", "layers", "params", "to_proto"]

_LAYER = MESSAGES["LayerParameter"]
# Of a layer's type, the field of LayerParameter that has its parameters.
_PARAMETERS = {
    field.type.__name__[: -len("Parameter")]: name
    for name, field in _LAYER.FIELDS.items()
    if name.endswith("_param") and field.is_message
}
_PARAMETERS.update({"Deconvolution": "convolution_param", "Im2col": "convolution_param"})
_PARAMETERS.update({"RNN": "recurrent_param", "LSTM": "recurrent_param"})
_OWN = {name for name in _LAYER.FIELDS if name not in ("bottom", "top", "type", "blobs")}


class Top:
    """A blob that a layer makes: the n-th of them."""

    def __init__(self, fn: Function, n: int):
        self.fn, self.n = fn, n

    def to_proto(self) -> Message:
        return to_proto(self)


class Function:
    """A layer, with the blobs that it takes and makes."""

    def __init__(self, type_name: str, inputs: tuple, params: dict):
        self.type_name = type_name
        for number, each in enumerate(inputs):
            if not isinstance(each, Top):
                raise TypeError(f"{type_name}: input {number} is not a blob of a layer but {each!r}")
        self.inputs = inputs
        self.params = dict(params)
        self.ntop = self.params.pop("ntop", 1)
        self.in_place = self.params.pop("in_place", False)
        if self.in_place and (len(inputs) != 1 or self.ntop != 1):
            raise ValueError(f"{type_name}: a layer that works in place has one input and one output")
        self.tops = tuple(Top(self, n) for n in range(self.ntop))
        self._layer()  # a wrong parameter is named where it is written

    def _layer(self) -> Message:
        layer = _LAYER(type=self.type_name)
        inner = _PARAMETERS.get(self.type_name)
        for name, value in self.params.items():
            if name in _OWN:
                _assign(layer, name, value, self.type_name)
            elif inner is not None:
                _assign(getattr(layer, inner), name, value, self.type_name)
            else:
                raise AttributeError(
                    f"{self.type_name}: there is no parameter {name!r}: a layer of this type has none of its own"
                    f"{suggestion(name, _OWN)}"
                )
        return layer


def _assign(message: Message, name: str, value, layer: str) -> None:
    field = message.FIELDS.get(name)
    if field is None:
        kind = type(message).__name__
        raise AttributeError(f"{layer}: {kind} has no field {name!r}{suggestion(name, message.FIELDS)}")
    try:
        if field.repeated:
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if field.is_message:
                    _fill(getattr(message, name).add(), item, layer)
                else:
                    getattr(message, name).append(item)
        elif field.is_message:
            _fill(getattr(message, name), value, layer)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError) as error:
        if str(error).startswith(layer + ": "):
            raise
        raise type(error)(f"{layer}: {error}") from None


def _fill(message: Message, value, layer: str) -> None:
    message._touch()
    if isinstance(value, Message):
        message.CopyFrom(value)
    elif isinstance(value, dict):
        for name, each in value.items():
            _assign(message, name, each, layer)
    else:
        raise TypeError(f"{layer}: a dict or a {type(message).__name__} is expected, not {value!r}")


class _Writer:
    """Gives names to layers and blobs, and writes each layer after those that it needs."""

    def __init__(self, names: dict):
        self.names = dict(names)
        self.counts: Counter = Counter()
        self.layers: OrderedDict = OrderedDict()

    def name(self, key, type_name: str) -> str:
        if key not in self.names:
            self.counts[type_name] += 1
            self.names[key] = f"{type_name}{self.counts[type_name]}"
        return self.names[key]

    def write(self, last: Function) -> None:
        waiting = [last]  # deep nets are deeper than Python's stack
        while waiting:
            fn = waiting[-1]
            missing = [top.fn for top in fn.inputs if top.fn not in self.layers]
            if fn in self.layers or not missing:
                waiting.pop()
                if fn not in self.layers:
                    self.layers[fn] = self.layer(fn)
            else:
                waiting.append(missing[0])

    def layer(self, fn: Function) -> Message:
        layer = fn._layer()
        layer.bottom.extend(self.layers[top.fn].top[top.n] for top in fn.inputs)
        if fn.in_place:
            layer.top.extend(layer.bottom)
        else:
            layer.top.extend(self.name(top, fn.type_name) for top in fn.tops)
        if not layer.HasField("name"):
            layer.name = self.name(fn.tops[0] if fn.tops else fn, fn.type_name)
        return layer

    def net(self) -> Message:
        net = MESSAGES["NetParameter"]()
        net.layer.extend(self.layers.values())
        return net


def _function(value, where: str) -> Function:
    if isinstance(value, Function):
        return value
    if not isinstance(value, Top):
        raise TypeError(f"{where} is not a blob of a layer but {value!r}")
    return value.fn


def to_proto(*tops) -> Message:
    """The net that makes these blobs, with names given by number: Convolution1, Convolution2, ..."""
    writer = _Writer({})
    for number, top in enumerate(tops):
        writer.write(_function(top, f"argument {number} of to_proto"))
    return writer.net()


class NetSpec:
    """A net whose blobs are its attributes, or items."""

    def __init__(self):
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name, value):
        _function(value, f"{name} of the NetSpec")
        self.tops[name] = value

    def __getattr__(self, name):
        tops = self.__dict__.get("tops", {})
        if name not in tops:
            raise AttributeError(f"the NetSpec has no blob {name!r}{suggestion(name, tops)}")
        return tops[name]

    def __setitem__(self, name, value):
        self.__setattr__(name, value)

    def __getitem__(self, name):
        return self.__getattr__(name)

    def __delattr__(self, name):
        del self.tops[name]

    __delitem__ = __delattr__

    def __contains__(self, name):
        return name in self.tops

    def to_proto(self) -> Message:
        writer = _Writer({top: name for name, top in self.tops.items()})
        for name, top in self.tops.items():
            writer.write(_function(top, name))
        return writer.net()


class Layers:
    """`L`: L.ReLU(bottom, in_place=True) adds a layer. Returns its blob, or as many as `ntop` says."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in LAYERS and name != "Python":
            raise AttributeError(f"Caffe has no layer {name!r}{suggestion(name, LAYERS)}")

        def layer(*inputs, **parameters):
            fn = Function(name, inputs, parameters)
            if fn.ntop == 0:
                return fn
            return fn.tops[0] if fn.ntop == 1 else fn.tops

        layer.__name__ = name
        return layer

    def __dir__(self):
        return sorted(LAYERS)


class Parameters:
    """`P`: P.Pooling.MAX is the number of PoolingParameter's MAX."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        message = MESSAGES.get(name + "Parameter")
        if message is None:
            known = [each[: -len("Parameter")] for each in MESSAGES if each.endswith("Parameter")]
            raise AttributeError(f"Caffe has no parameters for {name!r}{suggestion(name, known)}")
        return _Values(message)


class _Values:
    def __init__(self, message: type):
        self._message = message

    def __getattr__(self, name):
        value = vars(self._message).get(name)
        if not isinstance(value, (int, Enum)):
            raise AttributeError(f"{self._message.__name__} has no value {name!r}")
        return value


layers = Layers()
params = Parameters()
