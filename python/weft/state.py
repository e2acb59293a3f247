"""Lists of what is in a session: tasks, actors, objects, workers, nodes.

    from weft import state
    state.list_tasks(filters=[("state", "=", "RUNNING")])

Each list is a snapshot: rows are dictionaries, and what changes while it is made may be seen before or after the
change. Tasks that have ended are known from event logs, which keep each process's last 16,384 records.
"""

from __future__ import annotations

from typing import Any, Optional

from ._observe import EVENTS, NODES, OUTCOMES, RAN, ROLES, STAGES, STATE, Session, name_of, observe, task_id

__all__ = [
    "list_actors",
    "list_nodes",
    "list_objects",
    "list_tasks",
    "list_workers",
    "summarize_actors",
    "summarize_objects",
    "summarize_tasks",
    "summary",
]

_TASK_STATES = {0: "WAITING", 1: "READY", 2: "QUEUED", 3: "PUSHED", 4: "PUSHED", 5: "FINISHED"}
_ACTOR_STATES = {1: "PENDING", 2: "STARTING", 3: "ALIVE", 4: "RESTARTING", 5: "DEAD"}
_VALUE_KINDS = {0: "PENDING", 1: "INLINE", 2: "STORED", 3: "ERROR", 4: "ERROR"}
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
_DEFAULT_LIMIT = 100


def list_tasks(*, filters: Any = None, limit: int = _DEFAULT_LIMIT, session: Optional[Session] = None) -> list:
    """Tasks, the latest first.

    State: WAITING (for an argument), READY (for a worker), QUEUED (for an actor), PUSHED (to a worker), RUNNING,
    FINISHED, FAILED, CANCELLED, or DIED with its worker.
    """
    return _select(_tasks(observe(EVENTS | STATE, session)), filters, limit)


def list_actors(*, filters: Any = None, limit: int = _DEFAULT_LIMIT, session: Optional[Session] = None) -> list:
    """Actors, the dead last. State: PENDING, STARTING, ALIVE, RESTARTING or DEAD."""
    return _select(_actors(observe(0, session)), filters, limit)


def list_objects(*, filters: Any = None, limit: int = _DEFAULT_LIMIT, session: Optional[Session] = None) -> list:
    """Objects by their owners, the largest first. State: PENDING, INLINE, STORED or ERROR."""
    return _select(_objects(observe(STATE, session)), filters, limit)


def list_workers(*, filters: Any = None, limit: int = _DEFAULT_LIMIT, session: Optional[Session] = None) -> list:
    """Drivers and workers, the dead last. State: STARTING, IDLE, BUSY, BLOCKED (its task waits), ENDING, DEAD."""
    return _select(_workers(observe(EVENTS, session)), filters, limit)


def list_nodes(*, filters: Any = None, limit: int = _DEFAULT_LIMIT, session: Optional[Session] = None) -> list:
    """Nodes of the cluster, with their resources. State: ALIVE or DEAD. Values that only a node itself knows, from
    daemon_pid on, are None for all but the node that was asked."""
    return _select(_nodes(observe(NODES, session)), filters, limit)


def summarize_tasks(*, session: Optional[Session] = None) -> dict:
    """How many tasks of each function are in each state, and how long they ran: {name: {...}}."""
    return _count_tasks(_tasks(observe(EVENTS | STATE, session)))


def summarize_actors(*, session: Optional[Session] = None) -> dict:
    """How many actors of each class are in each state: {class: {state: count}}."""
    return _count(_actors(observe(0, session)), "class_name")


def summarize_objects(*, session: Optional[Session] = None) -> dict:
    """How many objects there are, and their bytes, by state: {state: {"count": ..., "bytes": ...}}."""
    return _count_objects(_objects(observe(STATE, session)))


def summary(*, session: Optional[Session] = None) -> dict:
    """All of it in numbers: {"node", "tasks", "actors", "objects", "workers"}."""
    seen = observe(EVENTS | STATE | NODES, session)
    workers: dict = {}
    for row in _workers(seen):
        if row["type"] == "worker":
            workers[row["state"]] = workers.get(row["state"], 0) + 1
    return {
        "node": next((row for row in _nodes(seen) if row["daemon_pid"]), {}),
        "tasks": _count_tasks(_tasks(seen)),
        "actors": _count(_actors(seen), "class_name"),
        "objects": _count_objects(_objects(seen)),
        "workers": workers,
    }


# ---- rows -----------------------------------------------------------------------------------------------------------


def _tasks(seen: dict) -> list:
    processes = {process["process"]: process for process in seen["processes"]}
    rows: dict = {}  # (submitter, handle) -> row
    submitted: dict = {}
    for number, process in processes.items():
        log = process["log"]
        if log is None:
            continue
        for event in log["events"]:
            if event.kind == RAN and event.outcome != 3:
                _add_run(rows, process, log, event, OUTCOMES[event.outcome], event.end)
            elif event.kind == 2:
                submitted[number, event.task] = event.begin
        for event in log["running"]:
            _add_run(rows, process, log, event, "DIED" if process["how"] else "RUNNING", None)
    for report in seen["reports"]:
        owner = report["process"]
        for handle, first_return, state, attempt, worker, name, waits_for in report["tasks"]:
            key = (owner, handle)
            known = rows.get(key)
            # The owner knows of a run's end a little later than the worker; a run of an earlier attempt is history.
            if known is not None and known["attempt"] >= attempt and known["state"] != "DIED":
                known["submitter"] = owner
                continue
            pid = processes[worker]["pid"] if worker in processes else None
            rows[key] = _task_row(
                task_id(owner, handle, first_return), name, _TASK_STATES.get(state, "?"), owner, attempt, worker, pid
            )
            rows[key]["waits_for"] = waits_for
    for key, row in rows.items():
        row["submitted_ns"] = submitted.get(key)
        begin = row["start_ns"]
        row["duration_ms"] = None if begin is None or row["end_ns"] is None else (row["end_ns"] - begin) / 1e6
    return sorted(rows.values(), key=lambda row: row["submitted_ns"] or row["start_ns"] or 0, reverse=True)


def _add_run(rows, process, log, event, state, end) -> None:
    key = (event.process, event.task)
    known = rows.get(key)
    if known is not None and known["attempt"] > event.attempt:
        return
    row = _task_row(
        task_id(event.process, event.task, event.object),
        name_of(log, event),
        state,
        event.process,
        event.attempt,
        process["process"],
        process["pid"],
    )
    row["start_ns"], row["end_ns"] = event.begin, end
    rows[key] = row


def _task_row(task, name, state, submitter, attempt, worker, pid) -> dict:
    return {
        "task_id": task,
        "name": name,
        "state": state,
        "attempt": attempt,
        "submitter": submitter,
        "worker": worker or None,
        "worker_pid": pid,
        "submitted_ns": None,
        "start_ns": None,
        "end_ns": None,
        "duration_ms": None,
        "waits_for": [],
    }


def _actors(seen: dict) -> list:
    pids = {process["process"]: process["pid"] for process in seen["processes"]}
    rows = [
        {
            "actor_id": actor["actor"],
            "class_name": actor["class_name"],
            "state": _ACTOR_STATES.get(actor["state"], "?"),
            "name": actor["name"],
            "namespace": actor["namespace"],
            "pid": pids.get(actor["worker"]),
            "worker": actor["worker"] or None,
            "restarts": max(actor["incarnation"] - 1, 0),
            "restarts_left": actor["restarts_left"],
            "detached": actor["detached"],
            "death_cause": actor["why"],
        }
        for actor in seen["actors"]
    ]
    return sorted(rows, key=lambda row: row["state"] == "DEAD")


def _objects(seen: dict) -> list:
    pids = {process["process"]: process["pid"] for process in seen["processes"]}
    rows: dict = {}
    borrowers: dict = {}
    for report in seen["reports"]:
        for identity, owner, kind, size, references, holds, count, borrowed, segment in report["objects"]:
            if borrowed:
                borrowers.setdefault(identity, []).append(report["process"])
                continue
            rows[identity] = {
                "object_id": identity,
                "state": _VALUE_KINDS.get(kind, "?"),
                "size_bytes": size,
                "owner": owner,
                "owner_pid": pids.get(owner),
                "references": references,
                "holds": holds,
                "borrowers": count,
                "borrowed_by": [],
                "stored_by": segment or None,
            }
    for identity, processes in borrowers.items():
        if identity in rows:
            rows[identity]["borrowed_by"] = processes
    return sorted(rows.values(), key=lambda row: row["size_bytes"], reverse=True)


def _workers(seen: dict) -> list:
    rows = []
    for process in seen["processes"]:
        log = process["log"]
        running = [] if log is None else [name_of(log, event) for event in log["running"]]
        rows.append(
            {
                "worker_id": process["process"],
                "pid": process["pid"] or None,  # None: it is being forked
                "type": ROLES.get(process["role"], "?"),
                "state": STAGES.get(process["stage"], "?"),
                "actor_class": process["actor"],
                "running": [] if process["how"] else running,
                "tasks_run": 0 if log is None else sum(event.kind == RAN for event in log["events"]),
                "memory_bytes": 0 if process["how"] else _memory(process["pid"]),
                "death_cause": process["how"],
            }
        )
    return sorted(rows, key=lambda row: row["state"] == "DEAD")


def _memory(pid: int) -> int:
    """The resident memory of a process that others do not share."""
    import os

    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            _, resident, shared = file.read().split()[:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _nodes(seen: dict) -> list:
    import os

    asked = seen["node"]
    if asked is None:
        return []
    rows = []
    for node in seen["nodes"]:
        own = asked if node["own"] else {}
        rows.append(
            {
                "node_id": node["node_id"],
                "state": "ALIVE" if node["alive"] else "DEAD",
                "node_name": node["name"],
                "is_head_node": node["head"],
                "address": node["address"],
                "resources_total": node["total"],
                "resources_available": node["available"] if node["alive"] else {},
                "labels": node["labels"],
                "death_cause": node["why"],
                "daemon_pid": own.get("daemon_pid"),
                "driver_pid": own.get("driver_pid"),
                "object_store_bytes": own.get("store_bytes"),
                "object_store_used_bytes": own.get("store_used_bytes"),
                "start_ns": own.get("started_ns"),
                "working_directory": os.fspath(own["working_directory"]) if own else None,
            }
        )
    return rows


# ---- choosing and counting ------------------------------------------------------------------------------------------


def _select(rows: list, filters: Any, limit: int) -> list:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"limit must be an integer of at least 0, not {limit!r}")
    for key, operator, value in _check_filters(filters):
        if rows and key not in rows[0]:
            raise ValueError(f"there is no {key!r} to filter by; there are {', '.join(rows[0])}")
        rows = [row for row in rows if _matches(row[key], operator, value)]
    return rows[:limit]


def _check_filters(filters: Any) -> list:
    checked = []
    for item in filters or ():
        if not isinstance(item, (tuple, list)) or len(item) != 3 or not isinstance(item[0], str):
            raise ValueError(f'a filter is (name, operator, value), such as ("state", "=", "RUNNING"), not {item!r}')
        if item[1] not in _OPERATORS:
            raise ValueError(f"the operator of a filter must be one of {' '.join(_OPERATORS)}, not {item[1]!r}")
        checked.append(tuple(item))
    return checked


def _matches(have: Any, operator: str, want: Any) -> bool:
    if isinstance(have, str) and isinstance(want, str):
        have, want = have.lower(), want.lower()
    elif isinstance(want, str) and have is not None:
        # From the command line everything is text.
        have, want = (have, _number(want)) if isinstance(have, (int, float)) else (str(have), want)
    if operator == "=":
        return bool(have == want)
    if operator == "!=":
        return bool(have != want)
    if have is None or want is None:
        return False
    try:
        if operator == "<":
            return bool(have < want)
        if operator == "<=":
            return bool(have <= want)
        return bool(have > want) if operator == ">" else bool(have >= want)
    except TypeError:
        return False


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _count(rows: list, by: str) -> dict:
    result: dict = {}
    for row in rows:
        states = result.setdefault(row[by], {})
        states[row["state"]] = states.get(row["state"], 0) + 1
    return result


def _count_tasks(rows: list) -> dict:
    result: dict = {}
    for row in rows:
        counts = result.setdefault(row["name"], {"states": {}, "total_ms": 0.0, "longest_ms": 0.0})
        counts["states"][row["state"]] = counts["states"].get(row["state"], 0) + 1
        took = row["duration_ms"]
        if took is not None:
            counts["total_ms"] += took
            counts["longest_ms"] = max(counts["longest_ms"], took)
    return result


def _count_objects(rows: list) -> dict:
    result: dict = {}
    for row in rows:
        counts = result.setdefault(row["state"], {"count": 0, "bytes": 0})
        counts["count"] += 1
        counts["bytes"] += row["size_bytes"]
    return result
