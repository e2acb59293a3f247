"""Which processes belong to a system under measurement, and what they cost. Linux, /proc only.

Called by the runner (idle rows, stopping) and by the drivers (bytes per queued task). Standard library only, so that a
driver which imports it stays as small as an ordinary program.

A process belongs to a system if it descends from the process that the runner started, or if it carries the mark that
the runner put into that process's environment: a daemon that was adopted by another parent is still counted.
"""

from __future__ import annotations

import os
import signal
import time

MARK = "WEFT_BENCH_MARK"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # The process ended in between, or is not ours to read.
        return b""


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _read(f"/proc/{name}/stat")
            if stat:
                # The command may contain spaces and brackets; everything after the last one is regular.
                fields = stat[stat.rindex(b")") + 2 :].split()
                if fields[0] != b"Z":
                    parents[int(name)] = int(fields[1])
    return parents


def processes_of(root: int, mark: str = "") -> list[int]:
    """The living processes of the system started as `root` and marked with `mark`."""
    parents = _parents()
    wanted = f"{MARK}={mark}".encode()
    members = set()
    for pid in parents:
        ancestor = pid
        while ancestor not in (0, root) and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor == root:
            members.add(pid)
        elif mark and wanted in _read(f"/proc/{pid}/environ").split(b"\0"):
            members.add(pid)
    return sorted(members)


def pss_bytes(pid: int) -> int:
    """Proportional set size: a page shared by n processes counts 1/n in each, so that a sum counts it once."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def rss_bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def threads_of(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, in nanosecond steps where the kernel offers them (schedstat), else in clock ticks."""
    total = 0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    precise = True
    for thread in threads:
        fields = _read(f"/proc/{pid}/task/{thread}/schedstat").split()
        if not fields:
            precise = False
            break
        total += int(fields[0])
    if precise:
        return total / 1e9
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return 0.0
    fields = stat[stat.rindex(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def command_of(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()[:120]


def end(root: int, mark: str, patience_seconds: float = 5.0) -> list[int]:
    """Ends what is left of a system, by process id: first SIGTERM, then SIGKILL. Returns what had to be killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = processes_of(root, mark)
        if not left:
            return []
        for pid in left:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline and processes_of(root, mark):
            time.sleep(0.05)
    return left
