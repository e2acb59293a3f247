"""What programs build on tasks and actors: pools, queues, results as they are ready, weights, parameter servers."""

from __future__ import annotations

from weft._completion import as_completed, map_unordered

from ._actor_pool import ActorPool
from ._parameter_server import ParameterServer
from ._queue import Empty, Full, Queue
from ._tf_cluster import TfCluster, TfClusterError, TfProcess, TfTask, tf_cluster
from ._weights import Weights, weights

__all__ = [
    "ActorPool",
    "Empty",
    "Full",
    "ParameterServer",
    "Queue",
    "TfCluster",
    "TfClusterError",
    "TfProcess",
    "TfTask",
    "Weights",
    "as_completed",
    "map_unordered",
    "tf_cluster",
    "weights",
]
