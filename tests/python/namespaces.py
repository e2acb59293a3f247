"""Machines that are none: network namespaces with a cable each to a common switch.

Each namespace is kept by a process that ends with ours, however that goes, and everything in it goes with it: nothing
has a name outside, nothing is left behind. Needs root, and a kernel that allows it; `why_not()` says what is missing.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
from typing import Optional

_PREFIX = "10.231.57"
_NOBODY = "02:00:00:00:00:99"  # no machine's hardware address
WEFT = os.path.join(sysconfig.get_path("scripts"), "weft")


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

    def lose(self, other: Machine, lost: bool) -> None:
        """What this machine sends to that one arrives nowhere; the other direction is as it was."""
        how = ("replace", other.address, "lladdr", _NOBODY, "nud", "permanent") if lost else ("del", other.address)
        _run(*self._namespace.inside("ip", "neighbour", *how, "dev", "cable"))

    def drop(self, share: float) -> None:
        """Of the packets that leave this machine, this share is lost, at random."""
        # Classic BPF: load a random number; if it is above the limit, TC_ACT_SHOT, else go on.
        limit = int((1 - share) * (2**32 - 1))
        code = f"4,32 0 0 4294963256,37 0 1 {limit},6 0 0 2,6 0 0 4294967295"
        _run(*self._namespace.inside("tc", "qdisc", "add", "dev", "cable", "clsact"))
        _run(*self._namespace.inside(*"tc filter add dev cable egress bpf da bytecode".split(), code))

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


class Nodes:
    """A node on each machine, the head on the first."""

    def __init__(self, network, home) -> None:
        self.machines = network.machines
        self.environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PYTHONUNBUFFERED": "1"}
        self.pids: list = []
        self.address = ""
        for number, machine in enumerate(self.machines, 1):
            self.add(machine, f"machine-{number}", f"--resource=machine-{number}=10")

    def add(self, machine, name: str, *options: str) -> None:
        where = [f"--address={self.address}"] if self.address else ["--head"]
        said = self.weft(
            machine, "start", *where, f"--host={machine.address}", "--num-cpus=1", "--json", f"--name={name}", *options
        )
        self.pids.append(int(re.search(r'"pid": (\d+)', said)[1]))
        self.address = re.search(r'"address": "([^"]*)"', said)[1]

    def weft(self, machine, *arguments) -> str:
        done = subprocess.run(
            machine.command(WEFT, *arguments), env=self.environment, capture_output=True, text=True, timeout=40
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def program(self, text: str, machine: int = 1) -> subprocess.Popen:
        """Runs on this machine; the first is the head's."""
        source = f"import os, sys, time, weft\nweft.init(address='auto')\n{textwrap.dedent(text)}"
        return subprocess.Popen(
            self.machines[machine - 1].command(sys.executable, "-c", source),
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def states(self) -> dict:
        """As the head sees them: name -> state of its latest life."""
        listed = self.weft(self.machines[0], "list", "nodes", f"--session={self.pids[0]}")
        rows = [line.split() for line in listed.splitlines()[1:]]
        return {row[0]: row[1] for row in rows}

    def end(self) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@functools.cache
def why_not(shaped: bool = False, lossy: bool = False) -> str:
    """What is missing for a Network; "" if nothing is."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for program in ("unshare", "nsenter", "ip", *(("tc",) if shaped or lossy else ())):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    try:
        with Network(1, "1gbit" if shaped else None) as network:
            if lossy:
                network.machines[0].drop(0.01)
    except OSError as error:
        return str(error)
    return ""
