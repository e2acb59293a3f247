"""Nodes on machines of their own, as far as the network goes: a head and two nodes in three network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import namespaces
import pytest
from helpers import wait_until

SECONDS = 40
NOTICED = 10.0  # seconds, until a node that is silent is known to be gone

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(namespaces.why_not()), reason=f"no network namespaces: {namespaces.why_not()}"),
]


@pytest.fixture
def nodes(tmp_path):
    with namespaces.Network(3) as network:
        made = namespaces.Nodes(network, tmp_path)
        yield made
        made.end()


EVERYWHERE = """
    def where():
        return weft.get_runtime_context().get_node_id()

    def ask():
        options = [{"num_cpus": 0, "resources": {f"machine-{n}": 1}} for n in (1, 2, 3)]
        return [weft.remote(where).options(**o).remote() for o in options]
"""


def test_tasks_run_on_all_machines(nodes):
    program = nodes.program(
        EVERYWHERE
        + """
    print(len(set(weft.get(ask(), timeout=30))), [node["NodeManagerAddress"] for node in weft.nodes()])
    """
    )
    out, err = program.communicate(timeout=SECONDS)
    assert out == f"3 {[machine.address for machine in nodes.machines]}\n", err


@pytest.mark.parametrize("how", [pytest.param("paused", marks=pytest.mark.faults), "partitioned"])
def test_a_silent_node_is_noticed_and_comes_back(nodes, how):
    program = nodes.program(
        EVERYWHERE
        + """
    weft.get(ask(), timeout=30)
    print("all", flush=True)

    @weft.remote(max_retries=-1, num_cpus=0)
    def anywhere(i):
        time.sleep(0.01)
        return i

    assert sys.stdin.readline()  # one is silent
    print(sorted(weft.get([anywhere.remote(i) for i in range(50)], timeout=60)) == list(range(50)), flush=True)
    assert sys.stdin.readline()  # it is back
    print(len(set(weft.get(ask(), timeout=60))), flush=True)
    """
    )
    try:
        assert program.stdout.readline() == "all\n", program.stderr.read()
        begin = time.monotonic()
        if how == "paused":
            os.kill(nodes.pids[2], signal.SIGSTOP)
        else:
            nodes.machines[2].plug(False)
        program.stdin.write("go\n")
        program.stdin.flush()
        wait_until(lambda: nodes.states()["machine-3"] == "DEAD", NOTICED + 5, "the head has noticed")
        # Looking takes a while itself.
        assert time.monotonic() - begin < NOTICED + 1.5
        assert program.stdout.readline() == "True\n", program.stderr.read()
        if how == "paused":
            os.kill(nodes.pids[2], signal.SIGCONT)
        else:
            nodes.machines[2].plug(True)
        wait_until(lambda: nodes.states()["machine-3"] == "ALIVE", SECONDS, "it has joined again")
        program.stdin.write("go\n")
        program.stdin.flush()
        assert program.stdout.readline() == "3\n", program.stderr.read()
    finally:
        program.stdin.close()
        program.kill()
        program.wait()


@pytest.mark.parametrize("how", ["the head is paused", pytest.param("the node is cut off", marks=pytest.mark.faults)])
def test_what_could_run_elsewhere_stands_still_first(nodes, tmp_path, how):
    """A node that does not hear of the head stops the actors of others: none works in two places at once."""
    program = nodes.program(
        f"""
    import threading

    @weft.remote(num_cpus=0, resources={{"machine-3": 1}}, max_restarts=1, max_task_retries=-1)
    class Writer:
        def __init__(self, path):
            self.path = path
            threading.Thread(target=self.write, daemon=True).start()

        def write(self):
            with open(self.path, "a", buffering=1) as file:
                while True:
                    file.write(f"{{os.getpid()}} {{time.monotonic()}}\\n")
                    time.sleep(0.01)

        def pid(self):
            return os.getpid()

    writer = Writer.remote({str(tmp_path / "lines")!r})
    print(weft.get(writer.pid.remote(), timeout=30), flush=True)
    assert sys.stdin.readline()
    print(weft.get(writer.pid.remote(), timeout=60), flush=True)
    """
    )

    def lines() -> list:
        text = (tmp_path / "lines").read_text()
        return [(int(pid), float(at)) for pid, at in map(str.split, text[: text.rfind("\n")].splitlines())]

    def stands_still() -> bool:
        return time.monotonic() - lines()[-1][1] > 0.5

    try:
        first = int(program.stdout.readline())
        wait_until(lambda: (tmp_path / "lines").exists() and lines(), SECONDS, "it writes")
        if how == "the head is paused":
            os.kill(nodes.pids[0], signal.SIGSTOP)
            wait_until(stands_still, NOTICED + 2, "it stands still")
            os.kill(nodes.pids[0], signal.SIGCONT)
        else:
            nodes.machines[2].plug(False)
            nodes.add(nodes.machines[1], "another", "--resource=machine-3=10")
        out, err = program.communicate("go\n", timeout=SECONDS)
        second = int(out)
        if how == "the head is paused":
            assert second == first, err
            wait_until(lambda: not stands_still(), SECONDS, "it goes on")
        else:
            assert second != first, err
            written = lines()
            ended = max(at for pid, at in written if pid == first)
            assert all(at > ended for pid, at in written if pid == second)
    finally:
        program.kill()
        program.wait()


def _processes(pid: int) -> dict:
    """Those that it has started, and they in turn: pid -> (parent, state)."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    found: dict = {}
    parents = {str(pid)}
    while parents:
        level = [row for row in rows if row[1] in parents]
        found.update({int(row[0]): (int(row[1]), row[2][0]) for row in level})
        parents = {row[0] for row in level}
    return found


def test_a_worker_that_is_started_while_the_node_stands_still_does_so_too(nodes):
    program = nodes.program(
        """
    @weft.remote(num_cpus=0, resources={"machine-3": 1})
    class Actor:
        def pid(self):
            return os.getpid()

    first = Actor.remote()
    print(weft.get(first.pid.remote(), timeout=30), flush=True)
    assert sys.stdin.readline()
    others = [Actor.remote() for _ in range(4)]
    pids = [other.pid.remote() for other in others]
    while weft.available_resources().get("machine-3", 10) > 5:
        time.sleep(0.01)
    print("placed", flush=True)
    print(len(set(weft.get(pids, timeout=60))), flush=True)
    """
    )
    zygote = 0
    try:
        first = int(program.stdout.readline())
        daemon = nodes.pids[2]

        def workers() -> dict:
            return {pid: state for pid, (_, state) in _processes(daemon).items() if pid != zygote}

        zygote = _processes(daemon)[first][0]
        assert zygote != daemon
        os.kill(zygote, signal.SIGSTOP)
        before = len(workers())
        program.stdin.write("go\n")
        program.stdin.flush()
        assert program.stdout.readline() == "placed\n"
        os.kill(nodes.pids[0], signal.SIGSTOP)
        wait_until(lambda: workers().get(first) == "T", NOTICED + 2, "it stands still")
        os.kill(zygote, signal.SIGCONT)
        wait_until(
            lambda: len(workers()) > before and set(workers().values()) == {"T"}, SECONDS, "so do those that are new"
        )
        os.kill(nodes.pids[0], signal.SIGCONT)
        out, err = program.communicate(timeout=60)
        assert out == "4\n", err
    finally:
        program.kill()
        program.wait()


def test_a_short_pause_costs_nothing(nodes):
    program = nodes.program(
        EVERYWHERE
        + """
    first = weft.get(ask(), timeout=30)
    print("all", flush=True)
    assert sys.stdin.readline()
    print(weft.get(ask(), timeout=30) == first, flush=True)
    """
    )
    assert program.stdout.readline() == "all\n", program.stderr.read()
    os.kill(nodes.pids[2], signal.SIGSTOP)
    time.sleep(1)  # the pause itself
    os.kill(nodes.pids[2], signal.SIGCONT)
    out, err = program.communicate("go\n", timeout=SECONDS)
    assert out == "True\n", err
    assert nodes.states() == {"machine-1": "ALIVE", "machine-2": "ALIVE", "machine-3": "ALIVE"}
