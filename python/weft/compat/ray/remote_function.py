"""Remote functions as Ray's programs see them: weft's, with the ways of calling that only Ray has."""

from __future__ import annotations

import weft

from ._translate import options as translate

__all__ = ["RemoteFunction", "remote"]


class RemoteFunction:
    """A remote function. `remote` is weft's own method, so that a call costs nothing more."""

    def __init__(self, function):
        self.remote = function.remote
        self._weft_function = function
        for name in ("__module__", "__name__", "__qualname__", "__doc__", "__wrapped__"):
            value = getattr(function, name, None)
            if value is not None:
                self.__dict__[name] = value

    @property
    def _function(self):
        return self._weft_function.__wrapped__

    def options(self, **options) -> RemoteFunction:
        """The same function with other options."""
        return RemoteFunction(self._weft_function.options(**translate(options)))

    def _remote(self, args=None, kwargs=None, **options):
        function = self._weft_function
        if options:
            function = function.options(**translate(options))
        return function.remote(*(args or ()), **(kwargs or {}))

    _submit = _remote  # its name in 2018

    def __call__(self, *args, **kwargs):
        name = self.__dict__.get("__name__", "f")
        raise TypeError(
            f"Remote functions cannot be called directly. Instead of running '{name}()', try '{name}.remote()'"
        )

    def __reduce__(self):
        return RemoteFunction, (self._weft_function,)

    def __repr__(self):
        return f"<remote function {self.__dict__.get('__qualname__', '?')}>"


def remote(*args, **options):
    """`@ray.remote`, `@ray.remote(num_cpus=2)` or `ray.remote(x)`, of functions and classes."""
    translated = translate(options)
    if not args:
        return lambda made_of: _make(made_of, translated)
    if len(args) > 1:
        raise TypeError(f"ray.remote takes one function or class, not {len(args)}; options are given by name")
    return _make(args[0], translated)


def _make(made_of, options: dict):
    from .actor import ActorClass

    if isinstance(made_of, (RemoteFunction, ActorClass)):
        raise TypeError("this is remote already; use .options(...) to change it")
    made = weft.remote(made_of, **options)
    return ActorClass(made) if isinstance(made_of, type) else RemoteFunction(made)
