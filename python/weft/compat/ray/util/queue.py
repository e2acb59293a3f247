"""ray.util.queue: a queue that tasks and actors share."""

from __future__ import annotations

from queue import Empty, Full

from weft.util import Queue

__all__ = ["Empty", "Full", "Queue"]
