"""Caffe's messages under the name that programs know: caffe_pb2.NetParameter, caffe_pb2.TRAIN."""

from .._message import ENUMS as _ENUMS
from .._message import MESSAGES as _MESSAGES

globals().update(_MESSAGES)
for _name, _enum in _ENUMS.items():
    globals()[_name] = _enum
    globals().update(_enum.items())

__all__ = [*_MESSAGES, *_ENUMS, *(name for enum in _ENUMS.values() for name in enum.keys())]
