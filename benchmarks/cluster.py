#!/usr/bin/env python3
"""Several machines: weft, Ray and bare TCP over the same cables, in one run.

The machines are network namespaces at one switch (tests/python/namespaces.py), so this needs root. Each system starts a
node on each; the program runs on the first. Repetitions of the systems alternate. Not part of `make bench`, which
measures one machine.

    .venv/bin/python benchmarks/cluster.py [--nodes=5] [--repetitions=5] [--rate=1gbit] [--peer=PYTHON] [--quick]

The peer is a Python that has Ray (benchmarks/peers_env.py makes one); without it there are no ratios.
"""

from __future__ import annotations

import argparse
import json
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

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "python"))
import namespaces  # noqa: E402

GIGABYTE = 1_000_000_000
STORE = 3_000_000_000
PIECE = 1 << 20

# The same program for both systems, which have the same names. It answers lines: a workload and its size.
PROGRAM = """
import json, sys, time
import numpy as np
import {module} as system

{init}

def near(number, **options):
    return dict(num_cpus=0, resources={{f"machine-{{number}}": 1}}, **options)

@system.remote
def add(x):
    return x + 1

@system.remote
def make(size):
    return np.ones(size, dtype=np.uint8)

@system.remote
def look(value):
    return int(value[-1]) + len(value)

@system.remote
class Adder:
    def add(self, x):
        return x + 1

there = add.options(**near(2))
adder = Adder.options(**near(2)).remote()
for number in range(1, {nodes} + 1):
    assert system.get(add.options(**near(number)).remote(1)) == 2
assert system.get(adder.add.remote(1)) == 2

def tasks_async(count):
    assert system.get([there.remote(i) for i in range(count)])[-1] == count

def task_sync(count):
    for i in range(count):
        system.get(there.remote(i))

def calls_async(count):
    assert system.get([adder.add.remote(i) for i in range(count)])[-1] == count

def call_sync(count):
    for i in range(count):
        system.get(adder.add.remote(i))

def seconds_of(workload, count):
    begun = time.perf_counter()
    workload(count)
    return time.perf_counter() - begun

def get_large(size):
    ref = make.options(**near(2)).remote(size)
    system.wait([ref], fetch_local=False, timeout=60)
    time.sleep(0.2)
    begun = time.perf_counter()
    value = system.get(ref)
    taken = time.perf_counter() - begun
    assert value[-1] == 1
    return taken

def spread(size, nodes):
    ref = system.put(np.ones(size, dtype=np.uint8))
    begun = time.perf_counter()
    told = system.get([look.options(**near(number)).remote(ref) for number in nodes])
    taken = time.perf_counter() - begun
    assert told == [size + 1] * len(nodes)
    return taken

for line in sys.stdin:
    name, size = line.split()
    size = int(size)
    if name == "get_large":
        taken = get_large(size)
    elif name == "to_one":
        taken = spread(size, [2])
    elif name == "to_all":
        taken = spread(size, range(2, {nodes} + 1))
    else:
        taken = seconds_of(globals()[name], size)
    time.sleep(0.3)  # what was freed is freed everywhere
    print(json.dumps(taken), flush=True)
"""

# A copy of so many bytes over TCP into pages of a fresh memfd: what a transfer is compared with.
RECEIVER = """
import mmap, os, socket, sys, time
host, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = socket.create_connection((host, port))
memory = os.memfd_create("copy")
os.ftruncate(memory, size)
view = memoryview(mmap.mmap(memory, size))
begun = time.perf_counter()
connection.sendall(b"g")
had = 0
while had < size:
    count = connection.recv_into(view[had:had + 1048576])
    assert count
    had += count
print(time.perf_counter() - begun, flush=True)
"""
SENDER = """
import mmap, os, socket, sys, threading
host, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory = mmap.mmap(-1, size)
memory[:] = b"1" * size
listener = socket.create_server((host, 0))
print(listener.getsockname()[1], flush=True)
def serve(connection):
    connection.recv(1)
    view = memoryview(memory)
    for at in range(0, size, 1048576):
        connection.sendall(view[at:at + 1048576])
    connection.close()
threads = []
for _ in range(count):
    connection, _ = listener.accept()
    threads.append(threading.Thread(target=serve, args=(connection,)))
    threads[-1].start()
for thread in threads:
    thread.join()
"""


def bare_copies(sender, receivers: list, size: int) -> float:
    """Seconds until all of them have all of it, at once."""
    source = subprocess.Popen(
        sender.command(sys.executable, "-c", SENDER, sender.address, str(size), str(len(receivers))),
        stdout=subprocess.PIPE,
        text=True,
    )
    port = source.stdout.readline().strip()
    copies = [
        subprocess.Popen(
            machine.command(sys.executable, "-c", RECEIVER, sender.address, port, str(size)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for machine in receivers
    ]
    seconds = [float(copy.communicate(timeout=300)[0]) for copy in copies]
    source.communicate(timeout=60)
    return max(seconds)


class System:
    """A node on each machine, and a program on the first that answers lines."""

    def __init__(self, name: str, python: str, init: str, machines: list, environment: dict) -> None:
        self.name = name
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        source = PROGRAM.format(module=name, init=init, nodes=len(machines))
        self.program = subprocess.Popen(
            machines[0].command(python, "-c", source),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def measure(self, workload: str, size: int) -> float:
        self.program.stdin.write(f"{workload} {size}\n")
        self.program.stdin.flush()
        line = self.program.stdout.readline()
        while line and not line[0].isdigit():
            line = self.program.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise RuntimeError(f"the program of {self.name} has ended in {workload}:\n{self.errors.read()[-2000:]}")
        return float(line)

    def end(self) -> None:
        self.program.stdin.close()
        try:
            self.program.wait(30)
        except subprocess.TimeoutExpired:
            self.program.kill()


class Weft(System):
    def __init__(self, machines: list, home: Path) -> None:
        program = os.path.join(sysconfig.get_path("scripts"), "weft")
        environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        self.pids: list = []
        address = ""
        for number, machine in enumerate(machines, 1):
            where = [f"--address={address}"] if address else ["--head"]
            said = subprocess.run(
                machine.command(
                    *(program, "start", *where, f"--host={machine.address}", "--num-cpus=1", "--json"),
                    *(f"--name=machine-{number}", f"--resource=machine-{number}=10"),
                    f"--object-store-memory={STORE}",
                ),
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            self.pids.append(int(re.search(r'"pid": (\d+)', said)[1]))
            address = re.search(r'"address": "([^"]*)"', said)[1]
        super().__init__("weft", sys.executable, 'system.init(address="auto")', machines, environment)

    def end(self) -> None:
        super().end()
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)


class Ray(System):
    def __init__(self, machines: list, python: str) -> None:
        # Its programs find no token when its nodes want one; without, it has less to do than weft.
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_AUTH_MODE": "disabled"}
        environment = {**os.environ, **quiet}
        ray = str(Path(python).parent / "ray")
        self.machines, self.ray, self.environment = machines, ray, environment
        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        head = machines[0].address
        self.nodes = []
        for number, machine in enumerate(machines, 1):
            where = [f"--address={head}:6379"]
            if number == 1:
                where = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={self.folder}"]
            resources = json.dumps({f"machine-{number}": 10})
            self.nodes.append(
                subprocess.Popen(
                    machine.command(
                        *(ray, "start", "--block", *where, f"--node-ip-address={machine.address}", "--num-cpus=1"),
                        *(f"--resources={resources}", f"--object-store-memory={STORE}", "--disable-usage-stats"),
                    ),
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            time.sleep(8 if number == 1 else 4)
        init = f'system.init(address="{head}:6379", _node_ip_address="{head}", log_to_driver=False)'
        super().__init__("ray", python, init, machines, environment)

    def end(self) -> None:
        super().end()
        for node in reversed(self.nodes):
            os.killpg(node.pid, signal.SIGTERM)
        for node in self.nodes:
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)


# name, workload, size for weft, size for Ray, goal
RATES = [
    ("remote tasks async", "tasks_async", 20_000, 2_000, 50),
    ("remote task sync", "task_sync", 1_000, 200, None),
    ("actor calls to another node, async", "calls_async", 20_000, 2_000, 50),
    ("actor call to another node, sync", "call_sync", 1_000, 200, 20),
]


def said_rate(count: float) -> str:
    return f"{count / 1000:.1f} k/s" if count >= 1000 else f"{count:.0f} /s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rate", help='of each cable, as tc says it ("1gbit"); default: no limit')
    parser.add_argument("--peer", help="a Python that has Ray")
    parser.add_argument("--quick", action="store_true", help="small sizes, two repetitions")
    parser.add_argument("--only", choices=["rates", "transfers"])
    options = parser.parse_args()
    why_not = namespaces.why_not(shaped=options.rate is not None)
    if why_not:
        print(f"no network namespaces: {why_not}", file=sys.stderr)
        return 1
    large = 10 * PIECE if options.quick else GIGABYTE
    repetitions = 2 if options.quick else options.repetitions
    with namespaces.Network(options.nodes, options.rate) as network, tempfile.TemporaryDirectory() as home:
        machines = network.machines
        systems: list = []
        try:
            systems.append(Weft(machines, Path(home)))
            if options.peer:
                systems.append(Ray(machines, options.peer))
            if options.only != "transfers":
                rates(systems, repetitions, options.quick)
            if options.only != "rates":
                transfers(systems, machines, repetitions, large)
        finally:
            for system in systems:
                system.end()
    return 0


def rates(systems: list, repetitions: int, quick: bool) -> None:
    for name, workload, *sizes, goal in RATES:
        found: dict = {}
        for _ in range(repetitions):
            for system in systems:
                size = sizes[system.name == "ray"] // (10 if quick else 1)
                found.setdefault(system.name, []).append(size / system.measure(workload, size))
        line = f"{name:38}"
        for system, samples in found.items():
            median = statistics.median(samples)
            line += f"  {system} {said_rate(median)} ({said_rate(min(samples))} to {said_rate(max(samples))})"
        if "ray" in found:
            line += f"  {statistics.median(found['weft']) / statistics.median(found['ray']):.0f}x"
            line += f" (goal {goal}x)" if goal else ""
        print(line, flush=True)


def transfers(systems: list, machines: list, repetitions: int, size: int) -> None:
    found: dict = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    first, second, others = machines[0], machines[1], machines[1:]
    for _ in range(repetitions):
        note("bare copy to one", bare_copies(second, [first], size))
        note(f"bare copies to {len(others)} at once", bare_copies(first, others, size))
        for system in systems:
            note(f"{system.name} get from another node", system.measure("get_large", size))
            note(f"{system.name} put to one", system.measure("to_one", size))
            note(f"{system.name} put to {len(others)}", system.measure("to_all", size))
    for name, samples in found.items():
        median = statistics.median(samples)
        print(
            f"{name:38}  {median:.3f} s ({min(samples):.3f} to {max(samples):.3f}), {size / median / 1e9:.2f} GB/s",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
