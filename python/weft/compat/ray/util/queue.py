"""ray.util.queue: a queue that tasks and actors share."""

from __future__ import annotations

from weft.util import Empty, Full, Queue

__all__ = ["Empty", "Full", "Queue"]
