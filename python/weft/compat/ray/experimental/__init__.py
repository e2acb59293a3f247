"""ray.experimental, as far as programs of 2018 use it."""

from __future__ import annotations

__all__ = ["ui"]


def __getattr__(name: str):
    if name == "ui":
        from importlib import import_module

        return import_module(f"{__name__}.ui")
    if name in ("TensorFlowVariables", "tf_utils"):
        raise AttributeError(
            f"ray.experimental.{name} is not available yet in this version of weft; pass the weights as a dict of "
            "arrays instead"
        )
    raise AttributeError(f"ray.experimental.{name} is not in weft's version of Ray's interface")
