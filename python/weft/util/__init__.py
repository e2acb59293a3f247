"""What programs build on top of tasks and actors: pools, queues, results as they are ready, weights of models."""

from __future__ import annotations

from weft._completion import as_completed, map_unordered

from ._actor_pool import ActorPool
from ._queue import Empty, Full, Queue
from ._weights import Weights, weights

__all__ = ["ActorPool", "Empty", "Full", "Queue", "Weights", "as_completed", "map_unordered", "weights"]
