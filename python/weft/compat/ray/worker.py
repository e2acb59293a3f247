"""ray.worker of 2018: the functions of `ray` under their old place, and who this process is."""

from __future__ import annotations

import weft

from ._calls import get, put, wait
from ._session import init, shutdown
from ._translate import LOCAL_MODE, SCRIPT_MODE, SILENT_MODE, WORKER_MODE
from .remote_function import remote

__all__ = [
    "LOCAL_MODE",
    "SCRIPT_MODE",
    "SILENT_MODE",
    "WORKER_MODE",
    "get",
    "global_worker",
    "init",
    "put",
    "remote",
    "shutdown",
    "wait",
]


class _Worker:
    """Ray's worker object, as far as programs look at it."""

    @property
    def connected(self) -> bool:
        return weft.is_initialized()

    @property
    def mode(self):
        """SCRIPT_MODE in a driver, WORKER_MODE in a worker, None without a session."""
        from weft import _api

        if not weft.is_initialized():
            return None
        return SCRIPT_MODE if _api._context is not None else WORKER_MODE

    def check_connected(self) -> None:
        if not self.connected:
            raise RuntimeError("Ray has not been started yet. You can start Ray with 'ray.init()'.")


global_worker = _Worker()
