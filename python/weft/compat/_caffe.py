"""Makes `import caffe` give weft.compat.caffe, and `import caffe.x` weft.compat.caffe.x: one module under two names.

Used under `weft run --ray-api=0.6` only: in the driver by the folder `_path_2018`, in workers by `_finder.install`. A
Caffe that is installed is used instead; a folder `caffe` without code in it is not taken for one.
"""

from __future__ import annotations

import os
import sys

from ._tensorflow import FOLDER

__all__ = ["become_ours", "install"]

_NAME = "caffe"


def install() -> None:
    """From now on `import caffe` gives weft.compat.caffe in this process, if no other is installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def become_ours() -> None:
    """Called by the module `caffe` of the folder `_path_2018` while it is executed."""
    from importlib import import_module

    install()
    import_module(_NAME)


def _installed():
    """The spec of a Caffe that is installed, or None."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(_NAME, [entry for entry in sys.path if os.path.abspath(entry) != FOLDER])
    return spec if spec is not None and spec.origin is not None else None


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name == _NAME:
            real = _installed()
            if real is not None:
                return real
        elif not name.startswith("caffe.") or not _is_ours(sys.modules.get(_NAME)):
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, _Loader(), origin="weft.compat", is_package=name in (_NAME, "caffe.proto"))


def _is_ours(module) -> bool:
    return module is not None and module is sys.modules.get("weft.compat.caffe")


class _Loader:
    def create_module(self, spec):
        from importlib import import_module

        name = "weft.compat." + spec.name
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            text = f"No module named {spec.name!r} in weft's Caffe (docs/user/learning.md says what it has)"
            raise ModuleNotFoundError(text, name=spec.name) from None
        # The import system is about to write the alias's spec into the module, which has one of its own.
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.spec
