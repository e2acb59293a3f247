"""Makes `import tensorflow` give TensorFlow 1, as programs of 2018 know it, where TensorFlow 2 is installed.

Used under `weft run --ray-api=0.6` only: in the driver by the folder `_path_2018`, in workers by `_finder.install`. The
view is a plain module named `tensorflow` with the names of `tensorflow.compat.v1`, and with TensorFlow's own behaviour
of then (graphs, sessions, reference variables). A plain module, because cloudpickle sends those by name: what a worker
unpickles is the view in that worker. Everything below (`tensorflow.python`, `tensorflow.compat.v2`, ...) is
TensorFlow's own. A TensorFlow 1 that is installed is left as it is.

Does not import TensorFlow before the program does, and does not emulate what TensorFlow 2 no longer has (`tf.contrib`);
the one exception is `tensorflow.examples.tutorials.mnist.input_data`, which is weft.compat._mnist.
"""

from __future__ import annotations

import os
import sys

__all__ = ["FOLDER", "become_view", "install"]

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_path_2018")

_NAME = "tensorflow"
_EXAMPLES = {  # what TensorFlow 2 has not: name -> the module that it is here, or None for an empty package
    "tensorflow.examples": None,
    "tensorflow.examples.tutorials": None,
    "tensorflow.examples.tutorials.mnist": None,
    "tensorflow.examples.tutorials.mnist.input_data": "weft.compat._mnist",
}
_CONTRIB = "tensorflow.contrib"
_NO_CONTRIB = "TensorFlow 2 has no tensorflow.contrib, and weft's view of TensorFlow 1 cannot bring it back"


def install() -> None:
    """From now on `import tensorflow` gives the view in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def become_view() -> None:
    """Called by the module `tensorflow` of the folder `_path_2018` while it is executed."""
    from importlib import import_module

    install()
    import_module(_NAME)


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != _NAME and not name.startswith("tensorflow."):
            return None
        from importlib.machinery import ModuleSpec

        if name == _NAME:
            return ModuleSpec(name, _ViewLoader(), origin="weft.compat", is_package=True)
        if not _is_view(sys.modules.get(_NAME)):
            return None  # a TensorFlow 1, or TensorFlow 2 while it is imported
        if name in _EXAMPLES:
            return ModuleSpec(name, _ExampleLoader(), origin="weft.compat", is_package=_EXAMPLES[name] is None)
        if name == _CONTRIB:
            raise ModuleNotFoundError(f"No module named {name!r}: {_NO_CONTRIB}", name=name)
        return None


class _ExampleLoader:
    """The packages above input_data, and input_data itself: one module under two names, so that what it defines is
    pickled by a name that every process knows."""

    def create_module(self, spec):
        from importlib import import_module

        ours = _EXAMPLES[spec.name]
        if ours is None:
            return None
        module = import_module(ours)
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        if hasattr(self, "spec"):  # the import system has written the alias's into the module
            module.__spec__ = self.spec


class _ViewLoader:
    def create_module(self, spec):
        self.real = _import_real()
        if not _is_two(self.real):
            self.spec = self.real.__spec__
            return self.real
        import types

        return types.ModuleType(_NAME)

    def exec_module(self, module):
        if module is self.real:
            module.__spec__ = self.spec
        else:
            _fill(module, self.real)


def _is_view(module) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _ViewLoader)


def _is_two(real) -> bool:
    version = str(getattr(real, "__version__", ""))
    return not version.startswith(("0.", "1."))


def _import_real():
    """TensorFlow as it is installed. Raises ImportError if it is not."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    path = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
    for finder in sys.meta_path:
        if not isinstance(finder, _Finder) and hasattr(finder, "find_spec"):
            spec = finder.find_spec(_NAME, path if finder is PathFinder else None)
            if spec is not None and spec.loader is not None:
                break
    else:
        raise ModuleNotFoundError(
            f"No module named 'tensorflow': {sys.executable} has none. Under weft run --ray-api=0.6 a program of "
            "TensorFlow 1 runs on TensorFlow 2: pip install tensorflow tf_keras",
            name=_NAME,
        )
    # tf.layers and tf.keras of then are in tf_keras, which TensorFlow uses if the environment says so. Each of its lazy
    # modules looks there when it is first used, which may be late, so the variable stays; child processes inherit it.
    if find_spec("tf_keras") is not None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # every worker would say which instructions its CPU has
    module = module_from_spec(spec)
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
        return sys.modules[_NAME]
    finally:
        sys.modules.pop(_NAME, None)  # the import system puts there what create_module returns


def _fill(view, real) -> None:
    """Switch TensorFlow 2 to the behaviour of TensorFlow 1, and give the view its names."""
    # TensorFlow's own modules expect to find theirs while they are imported.
    sys.modules[_NAME] = real
    try:
        one = _switch(real)
    finally:
        sys.modules[_NAME] = view
    own = ("__builtins__", "__dir__", "__getattr__", "__loader__", "__name__", "__package__", "__path__", "__spec__")
    for name in dir(one):
        if name not in own:
            try:
                vars(view)[name] = getattr(one, name)
            except AttributeError:
                pass  # listed, but not there in this version
    view.__file__ = real.__file__
    view.__path__ = list(real.__path__)
    view.__version__ = real.__version__
    view.__doc__ = f"TensorFlow {real.__version__} as TensorFlow 1 was, by weft run --ray-api=0.6"
    for name, value in vars(real).items():  # tensorflow.python and the like, which imports expect below the package
        if f"{_NAME}.{name}" in sys.modules:
            vars(view).setdefault(name, value)
    if "tf_keras" not in sys.modules:
        vars(view).pop("layers", None)  # TensorFlow's would only fail with the name of a module inside Keras
    view.__getattr__ = lambda name: _explain_missing(name, real)


def _switch(real):
    from importlib import import_module

    version = getattr(real, "__version__", "of an unknown version")
    try:
        one = import_module("tensorflow.compat.v1")
        disable = one.disable_v2_behavior
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"this TensorFlow ({version}, {getattr(real, '__file__', None)}) has no tensorflow.compat.v1, on which "
            "weft run --ray-api=0.6 runs programs of TensorFlow 1; install another: pip install 'tensorflow>=2.4,<3' "
            f"tf_keras. To use this one as it is, leave out --ray-api=0.6 ({error})",
            name=_NAME,
        ) from error
    _silence_deprecations()
    disable()
    return one


def _silence_deprecations() -> None:
    """Whoever asks for TensorFlow 1 knows that it is old; without this, nearly every line of a program warns."""
    import warnings

    try:
        from tensorflow.python.util import deprecation  # type: ignore[import-not-found,import-untyped,unused-ignore]

        deprecation._PRINT_DEPRECATION_WARNINGS = False
    except ImportError:
        pass  # then it warns
    warnings.filterwarnings("ignore", message=r"`tf\.(layers|keras|nn)\.\S+` is deprecated")


def _explain_missing(name: str, real):
    text = f"module 'tensorflow' has no attribute {name!r}"
    if name.startswith("__"):
        raise AttributeError(text)
    text += " in the view of TensorFlow 1 that weft run --ray-api=0.6 gives"
    if name == "layers":
        text = "tf.layers needs the package tf_keras, which holds TensorFlow 1's layers: pip install tf_keras"
    elif name == "contrib":
        text += f": {_NO_CONTRIB}"
    elif hasattr(real, name):
        text += f"; TensorFlow 2 has it: import tensorflow.compat.v2 as tf2; tf2.{name}"
    raise AttributeError(text)
