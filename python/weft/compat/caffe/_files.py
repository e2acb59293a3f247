"""Caffe's files, read and checked before Caffe sees them: errors name the file, the line and the layer.

A net or a solver is a path of a prototxt, or a message.
"""

from __future__ import annotations

import os

from . import _binary, _text
from ._message import MESSAGES, Message, suggestion
from ._schema import LAYERS

__all__ = ["check_weights", "existing", "read_net", "read_solver"]

_VALUES = ("data", "diff", "double_data", "double_diff")  # of blobs


def existing(path, what: str) -> str:
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no {what} {path!r} (in {os.getcwd()})")
    return path


def read_net(source) -> Message:
    """The net, as a message of its own. Raises ParseError, or ValueError for a layer that Caffe does not have."""
    net, where = _read(source, "NetParameter", "net")
    _check_layers(net, where)
    return net


def read_solver(source) -> Message:
    """The solver, with its nets inside instead of their paths."""
    solver, where = _read(source, "SolverParameter", "solver")
    if solver.HasField("solver_mode") and solver.solver_mode == solver.GPU:
        raise ValueError(f"{where(solver, 'solver_mode')}: solver_mode is GPU, but this Caffe computes on CPUs only")
    for path, inside in (("net", "net_param"), ("train_net", "train_net_param")):
        if solver.HasField(inside):
            _check_layers(getattr(solver, inside), where)
        if solver.HasField(path):
            getattr(solver, inside).CopyFrom(read_net(getattr(solver, path)))
            solver.ClearField(path)
    for net in solver.test_net_param:
        _check_layers(net, where)
    for path in solver.test_net:
        solver.test_net_param.append(read_net(path))
    solver.ClearField("test_net")
    return solver


def _read(source, kind: str, what: str):
    """The message, and a function that says where a field of it stands."""
    message = MESSAGES[kind]()
    if isinstance(source, Message):
        message.CopyFrom(source)  # raises TypeError for another kind of message
        return message, lambda inner, field: f"the {what}"
    path = existing(source, what)
    with open(path, "rb") as file:
        _text.parse(file.read().decode(errors="replace"), message, path)
    return message, lambda inner, field: f"{path}, line {inner._lines.get(field) or inner._lines.get('', 1)}"


def _check_layers(net: Message, where) -> None:
    for number, layer in enumerate(net.layer):
        name = f"layer {layer.name!r}" if layer.name else f"layer number {number}"
        if not layer.type:
            raise ValueError(f"{where(layer, '')}: {name} has no type")
        if layer.type not in LAYERS:
            raise ValueError(
                f"{where(layer, 'type')}: {name} has the type {layer.type!r}, which Caffe does not have"
                f"{suggestion(layer.type, LAYERS)}"
            )


def check_weights(path: str, shapes: dict) -> None:
    """Whether the caffemodel has weights for a net with these shapes of parameters by layer: ValueError if not."""
    with open(path, "rb") as file:
        data = file.read()
    if data.startswith(b"\x89HDF"):
        return  # Caffe reads these itself
    model = MESSAGES["NetParameter"]()
    try:
        _binary.read(model, data, without=_VALUES)
    except _binary.DecodeError as error:
        raise ValueError(f"{path} is not a caffemodel: {error}") from None
    found = {layer.name: layer.blobs for layer in [*model.layers, *model.layer] if len(layer.blobs)}
    wanted = {name: lengths for name, lengths in shapes.items() if lengths}
    if wanted and not wanted.keys() & found.keys():
        raise ValueError(
            f"{path} has weights for another net: it has {_names(found)}, and the net has {_names(wanted)}"
        )
    for name in wanted.keys() & found.keys():
        if len(found[name]) != len(wanted[name]):
            raise ValueError(
                f"{path} has weights for another net: layer {name!r} has {len(found[name])} arrays there and "
                f"{len(wanted[name])} in the net"
            )
        for number, (blob, shape) in enumerate(zip(found[name], wanted[name])):
            there = tuple(blob.shape.dim)
            if not blob.HasField("shape"):  # of a time in which all arrays had four dimensions
                there = (blob.num, blob.channels, blob.height, blob.width)
                shape = (1,) * (4 - len(shape)) + tuple(shape)
            if there != tuple(shape):
                raise ValueError(
                    f"{path} has weights for another net: array {number} of layer {name!r} has the shape {there} there "
                    f"and {tuple(shape)} in the net"
                )


def _names(layers: dict) -> str:
    return "the layers " + ", ".join(sorted(layers)[:8]) + (", ..." if len(layers) > 8 else "") if layers else "none"
