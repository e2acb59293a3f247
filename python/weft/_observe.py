"""Looks at sessions: finds them, asks their node daemons, and joins what daemons, owners and event logs say.

`weft.state`, `weft.timeline` and the command line are made of this. Needs no session of its own.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional

from . import _core

__all__ = ["EVENTS", "NODES", "OUTPUT", "STATE", "Session", "observe", "observe_all", "own_session", "sessions"]

EVENTS, OUTPUT, STATE, NODES = 1, 2, 4, 8  # bits of ObserveWhat (src/wire/messages.h)
_PATIENCE = 1.0  # seconds; a daemon answers in microseconds, unless it is stopped (kAnswerNs, runtime/observation.h)

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
    process: int  # RAN: the submitter of the task; DEPENDS: the owner of the object
    task: int
    object: int
    name: int
    attempt: int
    outcome: int
    lane: int
    begin: int
    end: int


def sessions(uid: Optional[int] = None) -> list:
    """The sessions of this user on this machine, the newest last; also those that are stopped.

    Only root can ask those of another user.
    """
    if uid is None:
        uid = os.geteuid()
    return sorted((Session(uid, pid) for pid in _core.find_sessions(uid)), key=_started)


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
        seen = _core.observe(session.uid, session.pid, what, limit, _PATIENCE)
    except ValueError as error:
        from .exceptions import WeftError

        raise WeftError(f"the session of node daemon {session.pid} cannot be looked at: {error}") from None
    for process in seen["processes"]:
        log = process["log"]
        if log is not None:
            log["events"] = [Event(*row) for row in log["events"]]
            log["running"] = [Event(*row) for row in log["running"]]
    return seen


def observe_all(what: int = 0) -> tuple:
    """Ask all sessions of this user at the same time: ({session: answer}, {session: why there is none}), newest last.

    As `observe`, but without event logs.
    """
    found = sessions()
    answers = _core.observe_all(os.geteuid(), [session.pid for session in found], what, 0)
    answered = {session: answer for session, answer in zip(found, answers) if isinstance(answer, dict)}
    silent = {session: answer for session, answer in zip(found, answers) if isinstance(answer, str)}
    return answered, silent  # those without either have just ended


def task_id(submitter: int, task: int, first_return: int) -> str:
    """A task's name for people: its first return's id, which `ref.hex()` gives too."""
    if first_return:
        return f"{submitter:016x}{first_return:016x}"
    return f"t{submitter:016x}{task:016x}"


def name_of(log: dict, event: Any) -> str:
    return log["names"].get(event.name, "?")
