"""Looks at sessions: finds them, asks their node daemons, and joins what daemons, owners and event logs say.

`weft.state`, `weft.timeline` and the command line are made of this. Needs no session of its own.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional

from . import _core

__all__ = ["EVENTS", "NODES", "OUTPUT", "STATE", "Session", "observe", "own_session", "sessions"]

EVENTS, OUTPUT, STATE, NODES = 1, 2, 4, 8  # bits of ObserveWhat (src/wire/messages.h)
_TIMEOUT = 2.0  # a process that is stopped does not answer; the others are told without it

# EventKind and EventOutcome of src/events/event_log.h.
RAN, SUBMITTED, DEPENDS, RETURNS = 1, 2, 3, 4
OUTCOMES = ("FINISHED", "FAILED", "CANCELLED", "HANDED_BACK")
ROLES = {1: "driver", 2: "worker"}
STAGES = {1: "STARTING", 2: "IDLE", 3: "BUSY", 4: "BLOCKED", 5: "ENDING", 6: "DEAD"}


class Session(NamedTuple):
    """A running session of a user of this machine, by its node daemon."""

    uid: int
    pid: int


class Event(NamedTuple):
    """One record of an event log; times in nanoseconds of CLOCK_MONOTONIC."""

    kind: int
    process: int  # RAN: who submitted the task; DEPENDS: who owns the object
    task: int
    object: int
    name: int
    attempt: int
    outcome: int
    lane: int
    begin: int
    end: int


def sessions(uid: Optional[int] = None) -> list:
    """The sessions of this user (root: of all users) on this machine, the newest last."""
    import re

    if uid is None:
        uid = os.geteuid()
    found = []
    try:
        with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        match = re.search(r" @weft-session-(\d+)-(\d+)$", line)
        # Connections that were accepted carry the name too: each session once.
        if match and (uid == 0 or int(match[1]) == uid):
            session = Session(int(match[1]), int(match[2]))
            if session not in found:
                found.append(session)
    return sorted(found, key=_started)


def _started(session: Session) -> tuple:
    try:
        with open(f"/proc/{session.pid}/stat", encoding="ascii", errors="replace") as file:
            return (int(file.read().rpartition(")")[2].split()[19]), session.pid)
    except (OSError, ValueError, IndexError):
        return (0, session.pid)


def own_session() -> Session:
    """The session that this process belongs to."""
    pid = _core.node_pid()
    if not pid:
        from .exceptions import WeftError

        raise WeftError("there is no session to look at: call weft.init() first")
    return Session(os.geteuid(), pid)


def observe(what: int = 0, session: Optional[Session] = None, limit: int = 10_000) -> dict:
    """Ask a daemon; this process's own by default. The answer is described in src/api_python/observe.cc."""
    if session is None:
        session = own_session()
    try:
        seen = _core.observe(session.uid, session.pid, what, limit, _TIMEOUT)
    except ValueError as error:
        from .exceptions import WeftError

        raise WeftError(f"the session of node daemon {session.pid} cannot be looked at: {error}") from None
    for process in seen["processes"]:
        log = process["log"]
        if log is not None:
            log["events"] = [Event(*row) for row in log["events"]]
            log["running"] = [Event(*row) for row in log["running"]]
    return seen


def task_id(submitter: int, task: int, first_return: int) -> str:
    """A task's name for people: its first return's id, which `ref.hex()` gives too."""
    if first_return:
        return f"{submitter:016x}{first_return:016x}"
    return f"t{submitter:016x}{task:016x}"


def name_of(log: dict, event: Any) -> str:
    return log["names"].get(event.name, "?")
