"""Makes `import ray` give weft.compat.ray, and `import ray.x` weft.compat.ray.x: the same modules under two names.

Used by the folder `_path`, which `weft run` puts on the path of the driver and of all that it starts, and by workers,
whose driver says so in its environment. Imports nothing, because every worker of such a driver does this.
"""

from __future__ import annotations

import os
import sys

__all__ = [
    "FOLDER",
    "VARIABLE",
    "VERSIONS",
    "become_ours",
    "describe_foreign",
    "foreign_ray",
    "install",
    "prepare_workers",
    "version_of",
]

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_path")
VARIABLE = "WEFT_RAY_API"
VERSIONS = ("2", "0.6")
_OURS = "weft.compat.ray"
_OWN = ("__cached__", "__file__", "__loader__", "__name__", "__package__", "__path__", "__spec__")  # of each module

# Libraries that are written on top of Ray and come with it.
_LIBRARIES = (
    "air",
    "autoscaler",
    "cluster_utils",
    "dag",
    "dashboard",
    "data",
    "llm",
    "rllib",
    "serve",
    "train",
    "tune",
    "workflow",
)


def version_of(environment) -> str:
    """Which of Ray's interfaces the environment asks for."""
    return environment.get(VARIABLE) or VERSIONS[0]


def foreign_ray():
    """A module `ray` that this process has imported and that is not ours."""
    module = sys.modules.get("ray")
    if module is None or module is sys.modules.get(_OURS):
        return None
    path = getattr(module, "__file__", None) or ""
    return None if path.startswith(FOLDER + os.sep) else module


def describe_foreign(module) -> str:
    where = getattr(module, "__file__", None) or "from an unknown place"
    return (
        f"another Ray is imported in this process already ({where}), so `import ray` cannot give weft; start the "
        "program without it, or write `import weft.compat.ray as ray`"
    )


def install() -> None:
    """From now on `import ray` gives weft.compat.ray in this process."""
    foreign = foreign_ray()
    if foreign is not None:
        raise ImportError(describe_foreign(foreign))
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if version_of(os.environ) == "0.6":
        from . import _caffe, _tensorflow

        _tensorflow.install()
        _caffe.install()


def become_ours() -> None:
    """Called by the module `ray` of the folder `_path` while it is executed: from now on `ray` is weft.compat.ray."""
    from importlib import import_module

    install()
    found = sys.modules.get("ray")
    ours = import_module(_OURS)
    if getattr(getattr(found, "__spec__", None), "loader_state", None) is None:
        sys.modules["ray"] = ours
    else:
        # A lazy import (importlib.util.LazyLoader): sys.modules must keep the module that was handed out before.
        vars(found).update({name: value for name, value in vars(ours).items() if name not in _OWN})


def prepare_workers() -> None:
    """In the zygote of a driver that uses Ray's names: what every worker of it finds in place."""
    install()
    from weft import _worker

    from . import ray  # noqa: F401

    _worker.import_the_rest()  # ray.init waits for the workers anyway
    # As Ray does: tasks run side by side, so each is to compute with one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "ray" and not name.startswith("ray."):
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, _Loader(), origin="weft.compat", is_package=name == "ray")


class _Loader:
    def create_module(self, spec):
        from importlib import import_module

        name = "weft.compat." + spec.name
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ModuleNotFoundError(_explain(spec.name), name=spec.name) from None
        # The import system is about to write the alias's spec into the module, which has one of its own.
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.spec


def _explain(name: str) -> str:
    part = name.split(".")[1]
    if part in _LIBRARIES:
        return f"No module named {name!r}: ray.{part} is a part of Ray that weft does not provide"
    return f"No module named {name!r} in weft's version of Ray's interface (docs/user/coming_from_ray.md has the list)"
