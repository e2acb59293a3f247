"""Actors as Ray's programs see them. Handles and methods are weft's own types, which get Ray's extra names here."""

from __future__ import annotations

import weft
from weft._core import ActorHandle, ActorMethod

from ._translate import options as translate

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor", "method"]


class ActorClass:
    """A class whose instances are actors."""

    def __init__(self, actor_class):
        self.remote = actor_class.remote
        self._weft_class = actor_class
        for name in ("__module__", "__name__", "__qualname__", "__doc__", "__wrapped__"):
            value = getattr(actor_class, name, None)
            if value is not None:
                self.__dict__[name] = value

    def options(self, **options) -> ActorClass:
        """The same class with other options."""
        return ActorClass(self._weft_class.options(**translate(options)))

    def _remote(self, args=None, kwargs=None, **options):
        actor_class = self._weft_class
        if options:
            actor_class = actor_class.options(**translate(options))
        return actor_class.remote(*(args or ()), **(kwargs or {}))

    _submit = _remote  # its name in 2018

    def __call__(self, *args, **kwargs):
        name = self.__dict__.get("__name__", "Actor")
        raise TypeError(f"Actors cannot be instantiated directly. Instead of '{name}()', use '{name}.remote()'")

    def __mro_entries__(self, bases):
        return self._weft_class.__mro_entries__(bases)  # raises, and says what to write

    def __getattr__(self, name):
        if name == "_weft_class":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._weft_class, name)

    def __reduce__(self):
        return ActorClass, (self._weft_class,)

    def __repr__(self):
        return f"<actor class {self.__dict__.get('__qualname__', '?')}>"


def method(*args, **options):
    """`@ray.method(num_returns=2)` on a method of an actor class."""
    return weft.method(*args, **translate(options))


def exit_actor():
    """End the actor that this is called in."""
    weft.exit_actor()


def _call(method, args=None, kwargs=None, **options):
    """`handle.method._remote(args, kwargs, num_returns=2)`."""
    if options:
        method = method.options(**translate(options))
    return method.remote(*(args or ()), **(kwargs or {}))


# The types are written in C++ and cannot be inherited from, but attributes can be added to them.
ActorMethod._remote = _call  # type: ignore[attr-defined]
ActorMethod._submit = _call  # type: ignore[attr-defined]
ActorHandle.__ray_ready__ = property(lambda handle: handle.__weft_ready__)  # type: ignore[attr-defined]
ActorHandle.__ray_terminate__ = property(lambda handle: handle.__weft_terminate__)  # type: ignore[attr-defined]
