"""What the tests share: waiting for conditions, drivers in processes of their own, and which processes still live."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import textwrap
import time
import uuid

TAG = "WEFT_TEST_TAG"


def wait_until(condition, seconds: float = 10.0, what: str = "") -> None:
    """Wait for a condition, and fail if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.005)


def tagged_processes(tag: str) -> dict[int, str]:
    """Living processes that were started, directly or not, with this tag in the environment: pid -> command."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if f"{TAG}={tag}".encode() not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                found[int(entry)] = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
    return found


def descendants(pid: int) -> list[int]:
    """Living processes below this one, zombies included."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(entry))
            except OSError:
                continue
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


class Driver:
    """A program in a process of its own. All that it starts is found by a tag in the environment."""

    def __init__(self, source: str, *, env=None, cwd=None, arguments=(), command=None, **popen):
        self.tag = uuid.uuid4().hex
        environment = {**os.environ, TAG: self.tag, "PYTHONUNBUFFERED": "1", **(env or {})}
        environment = {name: value for name, value in environment.items() if value is not None}
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        self.process = subprocess.Popen(
            [*(command or [sys.executable, "-c", textwrap.dedent(source)]), *arguments],
            env=environment,
            cwd=cwd,
            start_new_session=True,
            **popen,
        )
        self.stdout = self.stderr = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def finish(self, seconds: float = 60.0) -> int:
        """Wait for its end; what it printed is in stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the driver did not end in {seconds} s:\n{out!r}\n{err!r}") from None
        self.stdout, self.stderr = out.decode(errors="replace"), err.decode(errors="replace")
        return self.process.returncode

    def wait_for_line(self, line: str) -> None:
        """Read its output until this line. A line of a worker may have come between it and its end."""
        for read in self.process.stdout:
            if line in read.decode():
                return
        raise AssertionError(f"the driver ended without {line!r}: {self.process.stderr.read().decode()}")

    def processes(self) -> dict[int, str]:
        return tagged_processes(self.tag)

    def expect_nothing_left(self, seconds: float = 5.0) -> None:
        wait_until(lambda: not self.processes(), seconds, "processes left behind")


def run_driver(source: str, *, seconds: float = 60.0, code: int | None = 0, **options) -> Driver:
    """Run a program to its end, check its exit code, and that nothing is left of it."""
    driver = Driver(source, **options)
    driver.finish(seconds)
    if code is not None and driver.process.returncode != code:
        raise AssertionError(f"exit code {driver.process.returncode}:\n{driver.stdout}\n{driver.stderr}")
    driver.expect_nothing_left()
    return driver


def free_port() -> int:
    """Not one that the system may give to somebody's connection before it is listened at."""
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def hold(path: str, seconds: float = 60.0) -> None:
    """In a task: go on when this file exists."""
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path}")
        time.sleep(0.002)


def note(path: str, line: str = "") -> None:
    """In a task: leave a line that survives the process."""
    with open(path, "a") as file:
        file.write(f"{line or os.getpid()}\n")


def notes(path) -> list[str]:
    """The lines left so far."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
