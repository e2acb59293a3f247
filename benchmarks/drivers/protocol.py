"""The conversation between the runner and a driver: one JSON object per line, a request in, a reply out.

    {"workload": "tasks_async", "parameters": {"count": 1000}}   ->   {"metrics": {"tasks_per_second": 1.0}}

A reply holds `metrics` (numbers), `unsupported` (why this system has no such thing) or `error` (what went wrong). The
system under measurement is started by the first workload, so asking for versions starts nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
import traceback


class Unsupported(Exception):
    """This system has nothing that corresponds to the workload; the message says what is missing."""


def serve(start, distributions: list[str]) -> None:
    """Answers requests until the runner says quit or goes away.

    `start()` brings the system up and returns (workloads by name, stop).
    """
    # The pipe moves to private descriptors: whatever the system or its workers print or read must not touch it.
    requests = os.fdopen(os.dup(0), "r")
    replies = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)

    workloads, stop = None, None
    for line in requests:
        request = json.loads(line)
        name = request["workload"]
        if name == "quit":
            break
        try:
            if name == "versions":
                reply = {"versions": _versions(distributions)}
            else:
                if workloads is None:
                    workloads, stop = start()
                if name not in workloads:
                    raise Unsupported(f"no workload {name}")
                reply = {"metrics": workloads[name](**request["parameters"])}
        except Unsupported as reason:
            reply = {"unsupported": str(reason)}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    if stop is not None:
        stop()


def _versions(distributions: list[str]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in distributions:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def rounds(body, min_seconds: float) -> list[float]:
    """Durations of calls of `body`: at least one, and more until `min_seconds` have passed. The same rule for every
    system: a slow one is measured once per repetition, a fast one often enough to be told from noise."""
    durations = []
    deadline = time.perf_counter() + min_seconds
    while True:
        begin = time.perf_counter()
        body()
        end = time.perf_counter()
        durations.append(end - begin)
        if end >= deadline:
            return durations


def seconds_each(operation, min_seconds: float, block: int = 100) -> dict[str, float]:
    """Mean duration of `operation` over all calls in `min_seconds`, timed in blocks so that the clock costs nothing."""

    def body():
        for _ in range(block):
            operation()

    durations = rounds(body, min_seconds)
    return {
        "seconds": sum(durations) / (len(durations) * block),
        "median_block_seconds": statistics.median(durations) / block,
    }


def tasks_per_second(count: int, durations: list[float]) -> dict[str, float]:
    return {
        "tasks_per_second": count / statistics.median(durations),
        "first_round_tasks_per_second": count / durations[0],
        "rounds": len(durations),
    }


def check(condition: bool, message: str) -> None:
    """A measured result that is wrong is worth nothing: the row then fails instead of showing a number."""
    if not condition:
        raise RuntimeError(f"wrong result: {message}")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
