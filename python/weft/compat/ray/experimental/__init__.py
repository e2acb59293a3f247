"""ray.experimental, as far as programs of 2018 use it."""

from __future__ import annotations

__all__ = ["TensorFlowVariables", "tf_utils", "ui"]


def __getattr__(name: str):
    from importlib import import_module

    if name in ("tf_utils", "ui"):
        return import_module(f"{__name__}.{name}")
    if name == "TensorFlowVariables":
        return import_module(f"{__name__}.tf_utils").TensorFlowVariables
    raise AttributeError(f"ray.experimental.{name} is not in weft's version of Ray's interface")
