"""get, put and wait: weft's own, so that no frame of ours is in a traceback; but in 2018 wait counted milliseconds."""

from __future__ import annotations

from weft._core import get, put, wait

from ._level import IS_2018

__all__ = ["get", "put", "wait"]

if IS_2018:
    _wait = wait

    def wait(object_ids, num_returns=1, timeout=None, worker=None):  # type: ignore[no-redef,misc]
        """(ready, not ready), as soon as num_returns are ready or `timeout` milliseconds are over."""
        return _wait(object_ids, num_returns=num_returns, timeout=None if timeout is None else timeout / 1000)
