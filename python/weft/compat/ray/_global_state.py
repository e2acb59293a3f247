"""ray.global_state of 2018, and today's ray.nodes: what weft knows, under Ray's names."""

from __future__ import annotations

import weft

__all__ = ["GlobalState", "global_state"]


class GlobalState:
    """Tables of the session. Fields that have no meaning in weft are left out, not invented."""

    def _nodes(self) -> list:
        return [dict(node) for node in weft.nodes()]

    def client_table(self) -> list:
        return self._nodes()

    def cluster_resources(self) -> dict:
        return weft.cluster_resources()

    def available_resources(self) -> dict:
        return weft.available_resources()

    def chrome_tracing_dump(self, filename=None):
        return weft.timeline(filename)


global_state = GlobalState()
