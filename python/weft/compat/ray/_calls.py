"""get, put and wait. get is weft's own, so that no frame of ours is in the traceback of a task's exception."""

from __future__ import annotations

from weft import _core
from weft._core import get, put

from ._level import IS_2018

__all__ = ["get", "put", "wait"]


def _wait_seconds(object_refs, *, num_returns=1, timeout=None, fetch_local=True):
    """(ready, not ready), as soon as num_returns are ready or `timeout` seconds are over."""
    if isinstance(object_refs, list) and not object_refs:
        return [], []  # weft would ask where the one that is waited for should come from
    return _core.wait(object_refs, num_returns=num_returns, timeout=timeout, fetch_local=fetch_local)


def _wait_milliseconds(object_ids, num_returns=1, timeout=None, worker=None):
    """(ready, not ready), as soon as num_returns are ready or `timeout` milliseconds are over."""
    return _wait_seconds(object_ids, num_returns=num_returns, timeout=None if timeout is None else timeout / 1000)


wait = _wait_milliseconds if IS_2018 else _wait_seconds
