#!/usr/bin/env python3
"""Several machines, of which one is lost: how long until a program elsewhere knows it, or goes on.

The machines are network namespaces (tests/python/namespaces.py), so this needs root, and redis-server. The head is on
the first, with its state in a Redis there; the program on the second; what it waits for on the third.

    .venv/bin/python benchmarks/failover.py [--repetitions=5]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))
import namespaces  # noqa: E402

WEFT = os.path.join(sysconfig.get_path("scripts"), "weft")
REDIS_PORT = 6379

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 6380), 1)
except OSError:
    sys.exit(1)
"""

# Prints when it knows, by the clock that all namespaces of a machine share.
PROGRAM = """
import sys, time, weft
weft.init(address="auto")

@weft.remote(num_cpus=0)
def nothing():
    return 1

@weft.remote(num_cpus=0, max_retries=0)
def wait_long():
    print("waits", flush=True)
    time.sleep(600)

for line in sys.stdin:
    what, number = line.split()
    if what == "loss":
        try:
            weft.get(wait_long.options(resources={f"third-{number}": 1}).remote())
        except weft.WeftError as error:
            assert "third" in str(error), error
    else:  # a shape of its own, for which there is no lease yet
        weft.get(nothing.options(resources={"third": int(number) / 1000}).remote())
    print("at", time.monotonic(), flush=True)
"""


class Machines:
    """A node on each; the third is started anew when it was lost."""

    def __init__(self, network: namespaces.Network, home: str) -> None:
        self.network = network
        self.environment = {**os.environ, "HOME": home, "XDG_RUNTIME_DIR": home, "PYTHONUNBUFFERED": "1"}
        self.pids: dict = {}
        self.first, self.second, self.third = network.machines
        self.redis = subprocess.Popen(
            self.first.command("redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--dir", home),
            stdout=subprocess.DEVNULL,
        )
        ping = self.first.command("redis-cli", "ping")
        while "PONG" not in subprocess.run(ping, capture_output=True, text=True).stdout:
            time.sleep(0.05)
        self.start_head()
        self.start(self.second, "second")
        self.program = subprocess.Popen(
            self.second.command(sys.executable, "-c", PROGRAM),
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def weft(self, machine, name: str, *arguments: str) -> None:
        said = subprocess.run(
            machine.command(WEFT, "start", f"--host={machine.address}", f"--name={name}", "--json", *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert said.returncode == 0, said.stderr
        self.pids[name] = int(re.search(r'"pid": (\d+)', said.stdout)[1])

    def start_head(self) -> None:
        self.weft(self.first, "first", "--head", "--num-cpus=0", "--redis=redis://127.0.0.1")

    def answers(self, machine) -> bool:
        """Whether the head does, as seen from there."""
        return subprocess.run(machine.command(sys.executable, "-c", CONNECT, self.first.address)).returncode == 0

    def start(self, machine, name: str, *options: str) -> None:
        while not self.answers(machine):  # its cable may just have been plugged in
            time.sleep(0.05)
        self.weft(machine, name, f"--address={self.first.address}:6380", "--num-cpus=1", *options)

    def kill(self, name: str) -> float:
        now = time.monotonic()
        os.kill(self.pids[name], signal.SIGKILL)
        return now

    def ask(self, what: str, number: int) -> None:
        self.program.stdin.write(f"{what} {number}\n")
        self.program.stdin.flush()

    def read(self, word: str) -> str:
        while True:
            line = self.program.stdout.readline()
            if not line:
                raise RuntimeError(f"the program has ended: {self.program.stderr.read()[-2000:]}")
            if word in line:
                return line

    def answered(self) -> float:
        return float(self.read("at ").split()[1])

    def end(self) -> None:
        self.program.kill()
        for pid in self.pids.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.redis.terminate()
        self.redis.wait()


def report(what: str, seconds: list, goal: str) -> None:
    middle = statistics.median(seconds)
    print(f"{what:44} {middle:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} times)  goal {goal}")


def loss(machines: Machines, number: int, silently: bool) -> float:
    """Of the machine where the task runs that the program waits for."""
    machines.start(machines.third, "third", f"--resource=third-{number}=1")
    machines.ask("loss", number)
    machines.read("waits")
    begun = machines.kill("third") if not silently else time.monotonic()
    if silently:
        machines.third.plug(False)
    known = machines.answered()
    if silently:
        machines.kill("third")
        machines.third.plug(True)
    return known - begun


def restart(machines: Machines, number: int) -> float:
    """Of the head: until the first task that only it can place has its result."""
    machines.kill("first")
    while machines.answers(machines.first):
        time.sleep(0.01)
    machines.ask("new", number)
    begun = time.monotonic()
    machines.start_head()
    return machines.answered() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    if why_not := namespaces.why_not():
        print(f"no network namespaces: {why_not}", file=sys.stderr)
        return 1
    with namespaces.Network(3) as network, tempfile.TemporaryDirectory() as home:
        machines = Machines(network, home)
        try:
            numbers = iter(range(1, 3 * repetitions + 1))
            report(
                "a node daemon that was killed is known",
                [loss(machines, next(numbers), False) for _ in range(repetitions)],
                "< 1 s",
            )
            report(
                "a node that is silent is known",
                [loss(machines, next(numbers), True) for _ in range(repetitions)],
                "<= 10 s",
            )
            machines.start(machines.third, "third", "--resource=third=1")
            report(
                "head killed and restarted to the first task",
                [restart(machines, next(numbers)) for _ in range(repetitions)],
                "< 1 s",
            )
        finally:
            machines.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
