"""What ran when and where, as a trace for Chrome's or Perfetto's viewer, and as one page for any browser."""

from __future__ import annotations

import os
from typing import Any, Optional

from ._observe import DEPENDS, EVENTS, OUTCOMES, RAN, RETURNS, SUBMITTED, Session, name_of, observe, task_id

__all__ = ["timeline", "timeline_page"]


class _Slice:
    """One run of one task."""

    __slots__ = ("attempt", "begin", "end", "key", "lane", "name", "outcome", "pid", "process", "task")

    def __init__(self, process, pid, lane, name, begin, end, outcome, attempt, key, task):
        self.process, self.pid, self.lane, self.name = process, pid, lane, name
        self.begin, self.end, self.outcome, self.attempt = begin, end, outcome, attempt
        self.key, self.task = key, task  # (submitter, handle), and the id for people


class _Trace:
    """The runs, submissions and dependencies of a session."""

    def __init__(self, session: Optional[Session]):
        import time

        seen = observe(EVENTS, session)
        self.processes = {process["process"]: process for process in seen["processes"]}
        self.slices: list[_Slice] = []
        self.submitted: dict = {}  # task -> (process, time)
        self.overwritten = 0
        producers: dict = {}  # (owner, object) -> task
        takes: list = []  # (task, (owner, object))
        now = time.monotonic_ns()
        for number, process in self.processes.items():
            log = process["log"]
            if log is None:
                continue
            self.overwritten += log["overwritten"]
            for event in log["events"]:
                if event.kind == RAN:
                    self._add(number, process, log, event, event.end, OUTCOMES[event.outcome])
                    producers.setdefault((event.process, event.object), (event.process, event.task))
                elif event.kind == SUBMITTED:
                    self.submitted[number, event.task] = (number, event.begin)
                    producers[number, event.object] = (number, event.task)
                elif event.kind == RETURNS:
                    producers[number, event.object] = (number, event.task)
                elif event.kind == DEPENDS:
                    takes.append(((number, event.task), (event.process, event.object)))
            for event in log["running"]:
                # A process that died in a task left it running: it ended at an unknown time.
                outcome = "DIED" if process["how"] else "RUNNING"
                self._add(number, process, log, event, event.begin if process["how"] else now, outcome)
        self.slices.sort(key=lambda item: item.begin)
        last_run = {item.key: item for item in self.slices}
        first_run: dict = {}
        for item in self.slices:
            first_run.setdefault(item.key, item)
        # Arrows: (from process, lane, time, to slice).
        self.flows = []
        for key, (number, at) in self.submitted.items():
            run = first_run.get(key)
            if run is not None:
                self.flows.append(("submitted", None, number, at, run))
        for consumer, made in takes:
            producer = last_run.get(producers.get(made))
            run = first_run.get(consumer)
            if producer is not None and run is not None:
                self.flows.append(("depends", producer, producer.process, producer.end, run))

    def _add(self, number, process, log, event, end, outcome):
        self.slices.append(
            _Slice(
                number,
                process["pid"],
                event.lane,
                name_of(log, event),
                event.begin,
                max(end, event.begin),
                outcome,
                event.attempt,
                (event.process, event.task),
                task_id(event.process, event.task, event.object),
            )
        )

    def title(self, number: int) -> str:
        process = self.processes[number]
        what = "driver" if process["role"] == 1 else process["actor"] or "worker"
        return f"{what} pid={process['pid']}" + (" (dead)" if process["how"] else "")


def timeline(filename: Optional[Any] = None, *, session: Optional[Session] = None) -> Any:
    """What ran, for chrome://tracing or ui.perfetto.dev: a row per worker, arrows from submission to run and between
    tasks of which one takes the other's result.

    With a filename the trace is written there (JSON) and None is returned; without, it is returned as a list of events.
    Each process keeps its last 16,384 records.
    """
    trace = _Trace(session)
    events: list = []
    shown = {item.process for item in trace.slices} | {number for number, _ in trace.submitted.values()}
    for number in sorted(shown):
        process = trace.processes[number]
        about = {"ph": "M", "pid": process["pid"], "tid": 0, "ts": 0}
        events.append({**about, "name": "process_name", "args": {"name": trace.title(number)}})
        events.append({**about, "name": "process_sort_index", "args": {"sort_index": number}})
    for item in trace.slices:
        events.append(
            {
                "name": item.name,
                "cat": "task",
                "ph": "X",
                "ts": item.begin / 1000,
                "dur": (item.end - item.begin) / 1000,
                "pid": item.pid,
                "tid": item.lane,
                "args": {"task": item.task, "outcome": item.outcome, "attempt": item.attempt},
            }
        )
    for key, (number, at) in trace.submitted.items():
        pid = trace.processes[number]["pid"]
        args = {"task": f"{key[0]}/{key[1]}"}
        events.append(
            {
                "name": "submit",
                "cat": "submit",
                "ph": "X",
                "ts": at / 1000,
                "dur": 0,
                "pid": pid,
                "tid": 99,
                "args": args,
            }
        )
    for number, (kind, producer, source, at, run) in enumerate(trace.flows, 1):
        about = {"cat": kind, "name": kind, "id": number}
        # A flow begins inside a slice, so a producer's leaves a hair before its end.
        begin = at if producer is None else max(producer.begin, at - 1)
        tid = 99 if producer is None else producer.lane
        pid = trace.processes[source]["pid"]
        events.append({**about, "ph": "s", "ts": begin / 1000, "pid": pid, "tid": tid})
        events.append({**about, "ph": "f", "bp": "e", "ts": run.begin / 1000, "pid": run.pid, "tid": run.lane})
    if filename is None:
        return events
    import json

    with open(os.fspath(filename), "w", encoding="utf-8") as file:
        json.dump(events, file)
    return None


def timeline_page(filename: Optional[Any] = None, *, session: Optional[Session] = None) -> str:
    """The timeline as one page that needs nothing else: pan, zoom, a row per worker, a switch for arrows.

    With a filename the page is written there and the path is returned; without, the page itself is returned, a string
    that a notebook shows as a page.
    """
    import json

    from . import _timeline_page

    trace = _Trace(session)
    names: dict = {}
    rows: dict = {}
    start = min([item.begin for item in trace.slices] + [at for _, at in trace.submitted.values()], default=0)

    def row_of(number: int, lane: int) -> int:
        return rows.setdefault((number, lane), len(rows))

    # Rows in the order of processes, then lanes; a process that only submitted has one row.
    for number, lane in sorted({(item.process, item.lane) for item in trace.slices}):
        row_of(number, lane)
    submitters = {number for number, _ in trace.submitted.values()}
    for number in sorted(submitters - {number for number, _ in rows}):
        row_of(number, 0)
    order = sorted(rows)
    rows = {key: index for index, key in enumerate(order)}
    index = {id(item): position for position, item in enumerate(trace.slices)}
    data = {
        "rows": [trace.title(number) + (f" #{lane}" if lane else "") for number, lane in order],
        "names": names,
        "slices": [
            [
                rows[item.process, item.lane],
                item.begin - start,
                item.end - item.begin,
                names.setdefault(item.name, len(names)),
                item.outcome,
                item.task,
            ]
            for item in trace.slices
        ],
        # (kind, from row, from time, to slice)
        "flows": [
            [
                0 if producer is None else 1,
                rows[source, producer.lane if producer else 0]
                if (source, producer.lane if producer else 0) in rows
                else next(rows[key] for key in order if key[0] == source),
                at - start,
                index[id(run)],
            ]
            for kind, producer, source, at, run in trace.flows
        ],
        "overwritten": trace.overwritten,
    }
    data["names"] = list(names)
    page = _timeline_page.page(json.dumps(data, separators=(",", ":")))
    if filename is None:
        return page
    with open(os.fspath(filename), "w", encoding="utf-8") as file:
        file.write(page)
    return os.path.abspath(os.fspath(filename))
