"""ray.util.actor_pool."""

from __future__ import annotations

from weft.util import ActorPool

__all__ = ["ActorPool"]
