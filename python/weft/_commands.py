"""The commands of `weft` that look at running sessions: list, summary, status, explain, logs, stack, timeline.

Exit codes: 0 done; 1 there is no such session, or it did not answer; 2 wrong usage.
"""

from __future__ import annotations

import os
import sys

__all__ = ["COMMANDS", "run"]

_USAGE = {
    "list": "weft list tasks|actors|objects|nodes|workers [--filter NAME=VALUE] [--limit N] [--json] [--session PID]",
    "summary": "weft summary [--json] [--session PID]",
    "status": "weft status [--json]",
    "logs": "weft logs [PID] [--session PID]   or   weft logs --daemon [--session PID]",
    "stack": "weft stack [PID ...] [--session PID]",
    "explain": "weft explain [REFERENCE | TASK | ACTOR] [--json] [--session PID]",
    "timeline": "weft timeline [-o FILE.json | -o FILE.html] [--session PID]",
}
COMMANDS = tuple(_USAGE)

_COLUMNS = {
    "tasks": ("task_id", "name", "state", "attempt", "worker_pid", "duration_ms"),
    "actors": ("actor_id", "class_name", "state", "name", "namespace", "pid", "restarts", "death_cause"),
    "objects": ("object_id", "state", "size_bytes", "owner_pid", "references", "holds", "borrowers"),
    "nodes": ("node_name", "state", "address", "resources_total", "resources_available", "labels", "death_cause"),
    "workers": ("worker_id", "pid", "type", "state", "actor_class", "running", "tasks_run", "death_cause"),
}
_STATES = {  # that can be filtered by
    "tasks": "WAITING READY QUEUED PUSHED RUNNING FINISHED FAILED CANCELLED DIED",
    "actors": "PENDING STARTING ALIVE RESTARTING DEAD",
    "objects": "PENDING INLINE STORED ERROR",
}
_NOTHING = "no session of yours and no node runs on this machine; weft.init() starts a session, weft start a node"
_NO_LOG = (
    "nodes of `weft start` keep one; the daemon of weft.init() does if WEFT_LOG_LEVEL is set in the program's "
    "environment, and tells its warnings on the program's standard error in any case"
)


class _Mistake(Exception):
    """Wrong usage: exit code 2."""


class _Failure(Exception):
    """Cannot be done now: exit code 1."""


def run(arguments: list) -> int:
    """`weft COMMAND ...`, for a command of COMMANDS."""
    command, rest = arguments[0], arguments[1:]
    if "--help" in rest or "-h" in rest:
        print("usage: " + _USAGE[command])
        return 0
    try:
        return _RUN[command](rest)
    except _Mistake as mistake:
        print(f"weft {command}: {mistake}\nusage: {_USAGE[command]}", file=sys.stderr)
        return 2
    except _Failure as failure:
        print(f"weft: {failure}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has closed the pipe; Python must not complain about it again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# ---- options --------------------------------------------------------------------------------------------------------


def _parse(arguments: list, flags: tuple = (), values: tuple = ()) -> tuple:
    """(positional arguments, {option: value or list of values})."""
    positional, options = [], {}
    rest = list(arguments)
    while rest:
        item = rest.pop(0)
        name, equals, value = item.partition("=")
        if name in values:
            if not equals:
                if not rest:
                    raise _Mistake(f"{name} needs a value")
                value = rest.pop(0)
            options.setdefault(name, []).append(value)
        elif item in flags:
            options[item] = True
        elif item.startswith("-") and item != "-":
            raise _Mistake(f"there is no option {item}")
        else:
            positional.append(item)
    return positional, options


def _number(text: str, what: str) -> int:
    try:
        number = int(text)
        if number >= 0:
            return number
    except ValueError:
        pass
    raise _Mistake(f"{what} must be a number, not {text!r}")


def _choose_session(options: dict):
    from ._observe import observe_all, sessions

    wanted = options.get("--session")
    if wanted:
        return _session_of(_number(wanted[-1], "--session"))
    found = sessions()
    if len(found) <= 1:
        if not found:
            raise _Failure(_NOTHING)
        return found[0]
    answers, silent = observe_all()
    for why in silent.values():
        print(f"weft: {why}", file=sys.stderr)
    if not answers:
        raise _Failure("no session of yours answers" if silent else _NOTHING)
    *others, chosen = answers
    if others:
        listed = ", ".join(str(session.pid) for session in others)
        print(f"weft: several sessions run; this is the newest, {chosen.pid} (others: {listed})", file=sys.stderr)
    return chosen


def _session_of(pid: int):
    """The session with this node daemon, or with this driver: only then the others are asked."""
    from ._observe import observe_all, sessions

    users = {os.geteuid()}
    if users == {0}:
        try:
            users.add(os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            pass
    for user in users:
        for session in sessions(user):
            if session.pid == pid:
                return session
    answers, silent = observe_all()
    for session, seen in answers.items():
        if seen["node"] and seen["node"]["driver_pid"] == pid:
            return session
    missing = "".join(f"; {why}" for why in silent.values())
    raise _Failure(f"no session of yours has the node daemon or driver {pid}; `weft status` lists them{missing}")


def _asked(function, *arguments, **options):
    from .exceptions import WeftError

    try:
        return function(*arguments, **options)
    except WeftError as error:
        raise _Failure(str(error)) from None
    except ValueError as error:
        raise _Mistake(str(error)) from None


# ---- output ---------------------------------------------------------------------------------------------------------


def _print_json(value) -> None:
    import json

    json.dump(value, sys.stdout, indent=1)
    print()


def _cell(value) -> str:
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if value < 100 else f"{value:.0f}"
    if isinstance(value, dict):  # amounts, or labels
        return ", ".join(
            f"{name}={item}" if isinstance(item, str) else f"{_plain(item)} {name}" for name, item in value.items()
        )
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return " ".join(str(value).split())


def _plain(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_table(columns: tuple, rows: list) -> None:
    lines = [[column.upper() for column in columns]] + [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


# ---- commands -------------------------------------------------------------------------------------------------------


def _list(arguments: list) -> int:
    from . import state

    positional, options = _parse(arguments, ("--json",), ("--limit", "--filter", "--session"))
    if len(positional) != 1 or positional[0] not in _COLUMNS:
        raise _Mistake("say what to list: " + ", ".join(_COLUMNS))
    what = positional[0]
    limit = _number(options.get("--limit", ["100"])[-1], "--limit")
    filters = []
    for text in options.get("--filter", ()):
        for operator in ("!=", "<=", ">=", "=", "<", ">"):
            name, found, value = text.partition(operator)
            if found and name:
                filters.append((name.strip(), operator, value.strip()))
                states = _STATES.get(what, "").split()
                if name.strip() == "state" and states and value.strip().upper() not in states:
                    raise _Mistake(f"there is no state {value.strip()!r} of {what}; there are {', '.join(states)}")
                break
        else:
            raise _Mistake(f"a filter is NAME=VALUE, such as state=RUNNING, not {text!r}")
    session = _choose_session(options)
    rows = _asked(getattr(state, "list_" + what), filters=filters, limit=limit, session=session)
    if options.get("--json"):
        _print_json(rows)
    elif rows:
        _print_table(_COLUMNS[what], rows)
        if len(rows) == limit:
            print(f"(the first {limit}; --limit shows more)", file=sys.stderr)
    else:
        print(f"no {what}", file=sys.stderr)
    return 0


def _summary(arguments: list) -> int:
    from . import state

    positional, options = _parse(arguments, ("--json",), ("--session",))
    if positional:
        raise _Mistake(f"unexpected {positional[0]!r}")
    seen = _asked(state.summary, session=_choose_session(options))
    if options.get("--json"):
        _print_json(seen)
        return 0
    node = seen["node"]
    driver = f"session of process {node['driver_pid']}" if node.get("driver_pid") else "a cluster node"
    print(f"{driver} (node daemon {node.get('daemon_pid')})")
    print(f"workers: {_counts(seen['workers'])}")
    for title, counts in (("tasks", {n: c["states"] for n, c in seen["tasks"].items()}), ("actors", seen["actors"])):
        print(f"{title}:" + ("" if counts else " none"))
        for name, states in sorted(counts.items()):
            took = ""
            if title == "tasks" and seen["tasks"][name]["total_ms"]:
                took = f"  ({seen['tasks'][name]['total_ms']:.1f} ms together)"
            print(f"  {name}: {_counts(states)}{took}")
    objects = {f"{kind} ({_bytes(item['bytes'])})": item["count"] for kind, item in seen["objects"].items()}
    print(f"objects: {_counts(objects)}")
    return 0


def _counts(counts: dict) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _status(arguments: list) -> int:
    from . import state
    from ._observe import NODES, observe_all

    positional, options = _parse(arguments, ("--json",))
    if positional:
        raise _Mistake(f"unexpected {positional[0]!r}")
    found: dict = {}  # by node
    answers, silent = observe_all(NODES)
    for seen in answers.values():
        for row in state._nodes(seen):
            # Several nodes of one cluster may run here: each tells most of itself.
            if row["daemon_pid"] or row["node_id"] not in found:
                found[row["node_id"]] = row
    for why in silent.values():
        print(f"weft: {why}", file=sys.stderr)
    if options.get("--json"):
        _print_json(list(found.values()))
        return 0 if found else 1
    if not found:
        raise _Failure("no session of yours answers" if silent else _NOTHING)
    clusters: dict = {}
    for node in found.values():
        clusters.setdefault(node["node_id"][:16], []).append(node)
    for nodes in clusters.values():
        nodes.sort(key=lambda node: (not node["is_head_node"], node["node_id"]))
        if not nodes[0]["address"]:
            _print_session(nodes[0])
        else:
            _print_cluster(nodes)
    return 0


def _print_session(node: dict) -> None:
    driver = f"driver {node['driver_pid']}, in {node['working_directory']}" if node["driver_pid"] else "no driver"
    print(f"session {node['daemon_pid']}, {driver}")
    _print_use(node["resources_total"], node["resources_available"])
    print(f"  objects: {_bytes(node['object_store_used_bytes'])} of {_bytes(node['object_store_bytes'])} reserved")


def _print_use(total: dict, available: dict) -> None:
    for name, amount in total.items():
        print(f"  {name}: {_plain(round(amount - available.get(name, 0.0), 4))} of {_plain(amount)} in use")


def _print_cluster(nodes: list) -> None:
    living = [node for node in nodes if node["state"] == "ALIVE"]
    heads = [node["address"] for node in living if node["is_head_node"]]
    count = f"{len(living)} node" + ("" if len(living) == 1 else "s")
    print(f"cluster {heads[0] if heads else '(its head has gone)'}, {count}")
    total: dict = {}
    available: dict = {}
    for node in living:
        for amounts, of_node in ((total, node["resources_total"]), (available, node["resources_available"])):
            for name, amount in of_node.items():
                amounts[name] = round(amounts.get(name, 0.0) + amount, 4)
    _print_use(total, available)
    for node in nodes:
        what = "head" if node["is_head_node"] else "node"
        here = f", here with pid {node['daemon_pid']}" if node["daemon_pid"] else ""
        if node["state"] != "ALIVE":
            print(f"  {what} {node['node_name']} ({node['address']}) has gone: {node['death_cause']}")
            continue
        if node["death_cause"]:
            print(f"  {what} {node['node_name']} ({node['address']}): {node['death_cause']}")
            continue
        uses = ", ".join(
            f"{_plain(round(amount - node['resources_available'].get(name, 0.0), 4))}/{_plain(amount)} {name}"
            for name, amount in node["resources_total"].items()
        )
        labels = "".join(f" {key}={value}" for key, value in node["labels"].items())
        print(f"  {what} {node['node_name']} ({node['address']}){here}: {uses or 'no resources'}{labels}")


def _logs(arguments: list) -> int:
    from ._observe import OUTPUT, observe

    positional, options = _parse(arguments, ("--daemon",), ("--session",))
    if options.get("--daemon"):
        if positional:
            raise _Mistake("--daemon shows a daemon's log, not that of a process: choose the daemon with --session")
        return _daemon_log(options)
    wanted = {_number(item, "the pid") for item in positional}
    session = _choose_session(options)
    seen = _asked(observe, OUTPUT, session)
    actors = {process["process"]: process["actor"] for process in seen["processes"]}
    if wanted - {process["pid"] for process in seen["processes"]}:
        raise _Failure(f"no process {min(wanted)} is in this session; `weft list workers` shows them")
    shown = 0
    for number, pid, is_stderr, text in seen["output"]:
        if wanted and pid not in wanted:
            continue
        shown += 1
        prefix = f"({actors.get(number) or 'worker'} pid={pid}{' stderr' if is_stderr else ''}) "
        for line in text.splitlines():
            print(prefix + line)
    if not shown:
        print("no output", file=sys.stderr)
    return 0


def _daemon_log(options: dict) -> int:
    from . import _daemon_log as logs
    from ._observe import sessions

    uid = os.geteuid()
    living = [session.pid for session in sessions()]
    if options.get("--session"):
        pid = _number(options["--session"][-1], "--session")
        if pid not in logs.find(uid):
            session = _session_of(pid)
            uid, pid = session.uid, session.pid
        found = logs.find(uid)
    else:
        found = logs.find(uid)
        # The newest that runs, else the one that wrote last.
        pids = [pid for pid in living if pid in found] or list(found)
        if not pids:
            raise _Failure("there is no log of a node daemon: " + _NO_LOG)
        pid = pids[-1]
        if len(pids) > 1:
            others = ", ".join(map(str, pids[:-1]))
            print(f"weft: this is the log of the latest daemon, {pid} (others: {others})", file=sys.stderr)
    if pid not in found:
        raise _Failure(f"the node daemon {pid} keeps no log; {_NO_LOG}")
    ended = "" if pid in living or uid != os.geteuid() else ", which has ended"
    print(f"weft: {found[pid]}, of the node daemon {pid}{ended}", file=sys.stderr)
    try:
        for line in logs.lines(found[pid], uid):
            print(line)
    except OSError as error:
        raise _Failure(f"cannot read {found[pid]}: {error.strerror or error}") from None
    return 0


def _stack(arguments: list) -> int:
    from concurrent.futures import ThreadPoolExecutor

    from ._observe import observe
    from ._stacks import dump

    positional, options = _parse(arguments, (), ("--session",))
    wanted = {_number(item, "the pid") for item in positional}
    seen = _asked(observe, 0, _choose_session(options))
    living = [process for process in seen["processes"] if process["stage"] != 6 and process["pid"]]
    unknown = wanted - {process["pid"] for process in living}
    if unknown:
        raise _Failure(f"no process {min(unknown)} lives in this session; `weft list workers` shows them")
    asked = [process for process in living if not wanted or process["pid"] in wanted]

    def stack_of(process: dict):
        try:
            return dump(process["pid"]).rstrip()
        except LookupError as error:
            return error

    failed = 0
    # In parallel: a stopped daemon would make the others wait.
    with ThreadPoolExecutor(max(1, len(asked))) as threads:
        for process, stack in zip(asked, threads.map(stack_of, asked)):
            what = "driver" if process["role"] == 1 else process["actor"] or "worker"
            print(f"---- {what} pid={process['pid']}")
            failed += isinstance(stack, LookupError)
            print(f"({stack})" if isinstance(stack, LookupError) else stack)
    return 1 if failed and wanted else 0


_LONG = 1.0  # seconds; `weft explain` without a reference leaves shorter waits out


def _explain(arguments: list) -> int:
    from . import _explain as explaining

    positional, options = _parse(arguments, ("--json",), ("--session",))
    if len(positional) > 1:
        raise _Mistake(f"explain one thing at a time; {positional[1]!r} is too much")
    if positional:
        prefix = positional[0].lower()
        if not prefix.strip("0123456789abcdef") == "" or not 1 <= len(prefix) <= 32:
            raise _Mistake(f"{positional[0]!r} is no id, nor the beginning of one: those are 32 hexadecimal digits")
        session = _choose_session(options)
        try:
            found = _asked(explaining.explain_id, session, prefix)
        except LookupError as error:
            raise _Failure(str(error.args[0])) from None
        if options.get("--json"):
            _print_json(found)
        else:
            print(found["text"])
        return 0
    waits = _asked(explaining.explain_waits, _choose_session(options), _LONG)
    if options.get("--json"):
        _print_json(waits)
    elif waits:
        print("\n\n".join(f"{wait['type']} pid={wait['pid']}: {wait['text']}" for wait in waits))
    else:
        print(f"no process has waited for longer than {_LONG:g} s", file=sys.stderr)
    return 0


def _timeline(arguments: list) -> int:
    from . import _timeline as timelines

    positional, options = _parse(arguments, (), ("-o", "--output", "--session"))
    if positional:
        raise _Mistake(f"unexpected {positional[0]!r}; the file is given with -o")
    path = (options.get("-o", []) + options.get("--output", []) or ["weft-timeline.json"])[-1]
    session = _choose_session(options)
    write = timelines.timeline_page if path.endswith((".html", ".htm")) else timelines.timeline
    try:
        _asked(write, path, session=session)
    except OSError as error:
        raise _Failure(f"cannot write {path}: {error.strerror}") from None
    print(path)
    return 0


_RUN = {
    "list": _list,
    "summary": _summary,
    "status": _status,
    "logs": _logs,
    "stack": _stack,
    "explain": _explain,
    "timeline": _timeline,
}
