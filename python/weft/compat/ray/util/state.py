"""ray.util.state: the lists of weft.state, whose rows are dictionaries."""

from __future__ import annotations

from weft.state import (
    list_actors,
    list_nodes,
    list_objects,
    list_tasks,
    list_workers,
    summarize_actors,
    summarize_objects,
    summarize_tasks,
)

__all__ = [
    "list_actors",
    "list_nodes",
    "list_objects",
    "list_tasks",
    "list_workers",
    "summarize_actors",
    "summarize_objects",
    "summarize_tasks",
]
