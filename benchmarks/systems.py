"""Systems under measurement as the runner sees them: a long-lived driver process each, asked over a pipe."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
import uuid

import process_tree

HERE = os.path.dirname(os.path.abspath(__file__))


class SystemFailed(Exception):
    """The driver died, hung or reported an error. The message says which."""


class Unsupported(Exception):
    """The system has nothing that corresponds to the workload."""


def environment(programs: list[str]) -> tuple[dict[str, str], str]:
    """The environment of a system's processes, and the mark by which they are recognised."""
    mark = uuid.uuid4().hex
    result = dict(os.environ)
    result[process_tree.MARK] = mark
    result["WEFT_BENCH_PROGRAMS"] = os.pathsep.join(programs)
    # Workers of every peer import drivers/functions.py by name.
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.join(HERE, "drivers"), os.environ.get("PYTHONPATH")]))
    result["RAY_USAGE_STATS_ENABLED"] = "0"
    return result, mark


class Server:
    """One driver process. It starts with the first question and its system with the first workload."""

    def __init__(self, name: str, python: str, programs: list[str], log_path: str):
        self.name = name
        self._python = python
        self._programs = programs
        self._log_path = log_path
        self._process: subprocess.Popen | None = None
        self._mark = ""
        self._unread = b""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[int]:
        return process_tree.processes_of(self.pid, self._mark)

    def ask(self, workload: str, parameters: dict, timeout_seconds: float) -> dict:
        if self._process is None:
            self._start()
        assert self._process is not None
        request = json.dumps({"workload": workload, "parameters": parameters}) + "\n"
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
            reply = json.loads(self._read_line(timeout_seconds))
        except (OSError, ValueError, SystemFailed) as error:
            self.stop(patience_seconds=1)
            raise SystemFailed(f"{error} (see {self._log_path})") from None
        if "unsupported" in reply:
            raise Unsupported(reply["unsupported"])
        if "error" in reply:
            raise SystemFailed(f"{reply['error']} (see {self._log_path})")
        return reply

    def stop(self, patience_seconds: float = 20) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            process.stdin.write(b'{"workload": "quit"}\n')
            process.stdin.close()
        except OSError:
            pass
        try:
            process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            pass
        process_tree.end(process.pid, self._mark)
        process.wait()
        process.stdout.close()
        self._unread = b""

    def _start(self) -> None:
        variables, self._mark = environment(self._programs)
        script = os.path.join(HERE, "drivers", f"{self.name}_driver.py")
        with open(self._log_path, "ab") as log:
            # A session of its own: Ctrl-C reaches the runner alone, which then stops its systems in order.
            self._process = subprocess.Popen(
                [self._python, script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                start_new_session=True,
            )

    def _read_line(self, timeout_seconds: float) -> bytes:
        assert self._process is not None
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0:
                raise SystemFailed(f"no answer within {timeout_seconds:g} s")
            if select.select([self._process.stdout], [], [], left)[0]:
                piece = os.read(self._process.stdout.fileno(), 65536)
                if not piece:
                    raise SystemFailed("the driver ended without an answer")
                self._unread += piece
        line, self._unread = self._unread.split(b"\n", 1)
        return line


def measure_idle(server: Server, seconds: float, settle_seconds: float = 2.0) -> dict[str, float]:
    """What a system costs that does nothing, with both workers alive before and after."""
    workers = server.ask("worker_pids", {"count": 2}, 120)["metrics"]["worker_pids"]
    time.sleep(settle_seconds)
    pids = server.processes()
    missing = [pid for pid in workers if pid not in pids]
    if missing:
        raise SystemFailed(f"workers {missing} are gone before the idle measurement")
    before = {pid: process_tree.cpu_seconds(pid) for pid in pids}
    begin = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - begin
    used = sum(max(0.0, process_tree.cpu_seconds(pid) - before[pid]) for pid in pids)
    pss = {pid: process_tree.pss_bytes(pid) for pid in pids}  # After the CPU, because reading it is work.
    if any(pid not in server.processes() for pid in workers):
        raise SystemFailed("a worker ended during the idle measurement")
    return {
        "pss_bytes": sum(pss.values()),
        "driver_pss_bytes": pss[server.pid],
        "processes": len(pids),
        "threads_per_worker": max(process_tree.threads_of(pid) for pid in workers),
        "cpu_percent": 100 * used / elapsed,
    }
