"""ray.global_state of 2018, and today's ray.nodes: what weft knows, under Ray's names."""

from __future__ import annotations

import weft

__all__ = ["GlobalState", "global_state"]

_ALL = 1_000_000  # rows


class GlobalState:
    """Tables of the session. Fields that have no meaning in weft are left out, not invented."""

    def client_table(self) -> list:
        """The machines, under the names of 2018."""
        return [
            {
                "ClientID": node["NodeID"],
                "IsInsertion": node["Alive"],
                "NodeManagerAddress": node["NodeManagerAddress"],
                "NodeManagerPort": node["NodeManagerPort"],
                "Resources": node["Resources"],
            }
            for node in weft.nodes()
        ]

    def cluster_resources(self) -> dict:
        return weft.cluster_resources()

    def available_resources(self) -> dict:
        return weft.available_resources()

    def object_table(self, object_id=None):
        """What is known of an object, or of all of them by id."""
        return _table("list_objects", object_id)

    def task_table(self, task_id=None):
        """What is known of a task, or of all of them by id."""
        return _table("list_tasks", task_id)

    def actors(self) -> dict:
        """The actors by id."""
        return _table("list_actors", None)

    def workers(self) -> dict:
        """The processes by id."""
        return _table("list_workers", None)

    def error_messages(self, job_id=None) -> dict:
        """weft raises errors where a result is asked for, and keeps no list of them."""
        return {}

    def chrome_tracing_dump(self, filename=None):
        """What ran when: written to a file in Chrome's format, or returned as a list of events."""
        return weft.timeline(filename)


def _table(lister: str, wanted):
    import weft.state

    rows = getattr(weft.state, lister)(limit=_ALL)
    kind = lister[len("list_") : -1]
    name = {"object": "ObjectID", "task": "TaskID", "actor": "ActorID", "worker": "WorkerID"}[kind]
    table = {row[f"{kind}_id"]: {name: row[f"{kind}_id"], **row} for row in rows}
    if wanted is None:
        return table
    return table.get(wanted if isinstance(wanted, str) else wanted.hex(), {})


global_state = GlobalState()
