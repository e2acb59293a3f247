"""Machines that are none: network namespaces with a cable each to a common switch.

Each namespace is kept by a process that ends with ours, however that goes, and everything in it goes with it: nothing
has a name outside, nothing is left behind. Needs root, and a kernel that allows it; `why_not()` says what is missing.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import Optional

_PREFIX = "10.231.57"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class _Namespace:
    """A network namespace, as long as its process lives."""

    def __init__(self) -> None:
        # `cat` ends when our end of its input is closed: by us, or because we have gone.
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._keeper.stdin.write(b"here\n")
        try:
            self._keeper.stdin.flush()
        except BrokenPipeError:
            pass
        if self._keeper.stdout.readline() != b"here\n":
            why = self._keeper.stderr.read().decode().strip()
            self.close()
            raise OSError(f"no network namespace: {why}")
        self.pid = self._keeper.pid

    def inside(self, *command: str) -> list:
        """The command, to be run in here."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command]

    def close(self) -> None:
        for pipe in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            pipe.close()
        self._keeper.wait(20)


class Machine:
    """One namespace with an address."""

    def __init__(self, network: Network, number: int, rate: Optional[str]) -> None:
        self._switch, self._port = network._switch, f"port{number}"
        self._namespace = _Namespace()
        self.address = f"{_PREFIX}.{number}"
        try:
            _run(
                *("ip", "link", "add", "name", "cable", "netns", str(self._namespace.pid), "type", "veth"),
                *("peer", "name", self._port, "netns", str(self._switch.pid)),
            )
            inside = self._namespace.inside
            _run(*inside("ip", "link", "set", "lo", "up"))
            _run(*inside("ip", "address", "add", f"{self.address}/24", "dev", "cable"))
            _run(*inside("ip", "link", "set", "cable", "up"))
            _run(*self._switch.inside("ip", "link", "set", self._port, "master", "switch", "up"))
            if rate is not None:
                for where, device in ((inside, "cable"), (self._switch.inside, self._port)):
                    shape = ("rate", rate, "burst", "256kb", "latency", "50ms")
                    _run(*where("tc", "qdisc", "add", "dev", device, "root", "tbf", *shape))
        except BaseException:
            self._namespace.close()
            raise

    def command(self, *command: str) -> list:
        """The command, to be run on this machine."""
        return self._namespace.inside(*command)

    def plug(self, plugged: bool) -> None:
        """Pull the cable out of the switch, or put it back."""
        _run(*self._switch.inside("ip", "link", "set", self._port, "up" if plugged else "down"))

    def close(self) -> None:
        self._namespace.close()


class Network:
    """So many machines at one switch. rate: of each cable and direction, as tc says it ("1gbit"); default: no limit."""

    def __init__(self, count: int, rate: Optional[str] = None) -> None:
        self.machines: list = []
        self._switch = _Namespace()
        try:
            _run(*self._switch.inside("ip", "link", "add", "switch", "type", "bridge"))
            _run(*self._switch.inside("ip", "link", "set", "switch", "up"))
            for number in range(1, count + 1):
                self.machines.append(Machine(self, number, rate))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        self._switch.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_) -> None:
        self.close()


@functools.cache
def why_not(shaped: bool = False) -> str:
    """What is missing for a Network; "" if nothing is."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for program in ("unshare", "nsenter", "ip", *(("tc",) if shaped else ())):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    try:
        Network(1, "1gbit" if shaped else None).close()
    except OSError as error:
        return str(error)
    return ""
