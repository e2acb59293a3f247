"""Caffe for programs on weft: nets written in Python, Caffe's messages, and the real library if it is there.

`from weft.compat import caffe`, or `import caffe` under `weft run --ray-api=0.6`. Nets are written and messages are
read without anything else. Net and the solvers compute with Caffe 1.0 on CPUs, which
`python -m weft.compat.caffe.install` fetches.
"""

from __future__ import annotations

from . import io, proto
from ._library import CaffeError
from ._net import Layer, Net
from ._solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)
from .net_spec import NetSpec, layers, params, to_proto
from .proto import caffe_pb2

__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "CaffeError",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
    "io",
    "layer_type_list",
    "layers",
    "params",
    "proto",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
    "to_proto",
]

TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST


def set_mode_cpu() -> None:
    """Nothing else is possible here."""


def set_mode_gpu() -> None:
    raise CaffeError("this Caffe computes on CPUs only: leave out caffe.set_mode_gpu(), or call caffe.set_mode_cpu()")


def set_device(number: int) -> None:
    raise CaffeError(f"this Caffe computes on CPUs only, so there is no GPU {number}: leave out caffe.set_device()")


def set_random_seed(seed: int) -> None:
    """For what this thread draws from now on: initial weights, dropout, mirrored and cropped images."""
    from ._library import check, library

    check(library().cf_set_random_seed(seed))


def layer_type_list() -> list:
    """The types of layers that the library has."""
    from ._library import library

    return library().cf_layer_types().decode().split()
