"""Messages about waits: about one that lasts long, and about those in an observed session.

C++ finds out what waits for what (src/runtime/wait_graph.h), for both.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["explain_id", "explain_waits", "long_wait_seconds", "tell_of_long_wait"]

_VARIABLE = "WEFT_LONG_WAIT_SECONDS"
_DEFAULT_SECONDS = 10.0


def long_wait_seconds() -> float:
    """After how long a get or wait says what it waits for; 0: never."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return _DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= 1e9:
        raise ValueError(
            f"the environment variable {_VARIABLE} must be a number of seconds (0: never say it), not {text!r}"
        )
    return seconds


def tell_of_long_wait(seconds: float, what: str) -> None:
    """One line for the user, once in each get or wait."""
    import logging

    logging.getLogger("weft").warning("after %.0f s: %s", seconds, what)


# ---- looking at a session -------------------------------------------------------------------------------------------


def explain_waits(session: Any, min_seconds: float, process: int = 0) -> list:
    """Threads of a session that have waited in get or wait for so long, the longest first."""
    from ._observe import ROLES, observe

    processes = {row["process"]: row for row in observe(0, session)["processes"]}
    waits = _ask("explain_waits", session, process, min_seconds)
    for wait in waits:
        del wait["known"]
        row = processes.get(wait["process"], {"role": 0, "actor": ""})
        wait["type"] = row["actor"] or ROLES.get(row["role"], "?")
    return sorted(waits, key=lambda wait: wait["seconds"], reverse=True)


def explain_id(session: Any, prefix: str) -> dict:
    """What an object, task or actor waits for, by its id or the beginning of it.

    LookupError if there is none such; ValueError if there are several.
    """
    from . import state
    from ._observe import EVENTS, STATE, observe

    seen = observe(EVENTS | STATE, session)
    found: dict = {}
    for row in state._objects(seen):
        found[row["object_id"]] = ("object", row)
    for row in state._tasks(seen):
        found[row["task_id"]] = ("task", row)
    for row in state._actors(seen):
        found[row["actor_id"]] = ("actor", row)
    matching = [identity for identity in found if identity.startswith(prefix)]
    if len(matching) > 1:
        shown = "\n".join(f"  {identity}  {_describe(*found[identity])}" for identity in sorted(matching)[:10])
        more = f"\n  and {len(matching) - 10} more" if len(matching) > 10 else ""
        raise ValueError(f"{len(matching)} ids begin with {prefix}:\n{shown}{more}")
    if matching:
        identity = matching[0]
    elif len(prefix) == 32:
        identity = prefix  # lists are cut at some length: its owner may know it
    else:
        raise LookupError(f"nothing in this session has an id that begins with {prefix}; `weft list` shows ids")
    kind, row = found.get(identity, ("object", {}))
    (answer,) = _ask("explain_object", session, int(identity[:16], 16), int(identity[16:], 16))
    text = answer["text"]
    if kind == "actor" and row["state"] != "PENDING":
        text = f"{_describe(kind, row)}, pid {row['pid']}" if row["pid"] else _describe(kind, row)
        if row["death_cause"]:
            text += f": {row['death_cause']}"
        if row["worker"] and row["state"] != "DEAD":
            waits = explain_waits(session, 0.0, row["worker"])
            text = "\n".join([text, *(wait["text"] for wait in waits)])
    elif not answer["known"]:
        if not row:
            raise LookupError(
                f"this session has no object {identity}: it was never there, was freed, or its owner died"
            )
        if kind == "task":
            text = _describe(kind, row)
    return {"id": identity, "kind": kind, "stuck": answer["stuck"], "text": text}


def _describe(kind: str, row: dict) -> str:
    if kind == "object":
        return f"object, {row['state']}"
    return f"{kind} {row['name' if kind == 'task' else 'class_name']!r} is {row['state']}"


def _ask(question: str, session: Any, *arguments: Any) -> list:
    from . import _core
    from .exceptions import WeftError

    try:
        return list(getattr(_core, question)(session.uid, session.pid, *arguments))
    except ValueError as error:
        raise WeftError(f"the session of node daemon {session.pid} cannot be looked at: {error}") from None
