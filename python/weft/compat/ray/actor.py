"""Actors as Ray's programs see them. Handles are weft's own."""

from __future__ import annotations

import weft

from ._translate import options as translate

__all__ = ["ActorClass", "exit_actor", "method"]


class ActorClass:
    """A class whose instances are actors."""

    def __init__(self, actor_class, *body):
        if body:  # somebody wrote `class B(A)`, and Python takes our type for the metaclass
            raise TypeError(
                "an actor class cannot be inherited from: inherit from the plain class, and apply ray.remote to the "
                "class that actors are made of"
            )
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


def __getattr__(name: str):
    if name == "ActorHandle":
        return weft.ActorHandle
    raise AttributeError(f"module 'ray.actor' has no attribute {name!r} in weft's version of Ray's interface")
