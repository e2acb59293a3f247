"""Nodes that cannot reach each other, though the head reaches them; slow cables, and cables that lose packets.

A head and two nodes in three network namespaces. Packets between two of them are lost in one direction or in both, for
longer or shorter than it takes until the head makes one of the two leave.
"""

from __future__ import annotations

import json
import os
import signal
import time

import namespaces
import pytest
from helpers import wait_until

SECONDS = 60
RESOLVED = 20.0  # seconds, until everybody knows that one of two nodes has left that cannot reach each other
LONG = pytest.mark.faults  # for `make test-faults`
SHORT = 6.5  # seconds: links end by silence meanwhile, and nobody complains yet

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(namespaces.why_not()), reason=f"no network namespaces: {namespaces.why_not()}"),
]


@pytest.fixture
def nodes(tmp_path):
    with namespaces.Network(3) as network:
        made = namespaces.Nodes(network, tmp_path)
        yield made
        made.end()


class Talk:
    """A program that says lines of JSON, and goes on when it is told to."""

    def __init__(self, nodes, text: str, machine: int = 1) -> None:
        begin = """
    import json
    from weft.util.scheduling_strategies import NodeAffinity

    def say(*what):
        print(json.dumps(what), flush=True)

    def await_word():
        assert sys.stdin.readline()

    def node_of(name):
        return next(n["NodeID"] for n in weft.nodes() if n["NodeName"] == name and n["Alive"])

    def here():
        return weft.get_runtime_context().get_node_id()

    def outcome(ref):
        try:
            return "value", weft.get(ref, timeout=50)
        except Exception as error:
            return type(error).__name__, str(error)

    def all_is_free():
        deadline = time.monotonic() + 15
        while weft.available_resources() != weft.cluster_resources():
            if time.monotonic() > deadline:
                return weft.available_resources(), weft.cluster_resources()
            time.sleep(0.05)
        return True
"""
        where = f"    DIRECTORY = {nodes.environment['HOME']!r}\n"
        self.process = nodes.program(where + begin + text, machine)

    def __enter__(self) -> Talk:
        return self

    def hear(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        said = json.loads(line)
        return said[0] if len(said) == 1 else said

    def tell(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


def cut(one, other, way: str, lost: bool) -> None:
    if way in ("both ways", "there"):
        one.lose(other, lost)
    if way in ("both ways", "back"):
        other.lose(one, lost)


def children(pid: int) -> list:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def log_of(nodes, number: int) -> str:
    with open(os.path.join(nodes.environment["XDG_RUNTIME_DIR"], "weft", f"node-{nodes.pids[number - 1]}.log")) as file:
        return file.read()


# What a program on machine-2 has to do with machine-3, and what is said of it in the end.
BUSINESS = """
    import numpy as np
    third = NodeAffinity(node_of("machine-3"), soft=True)
    only = NodeAffinity(node_of("machine-3"))

    @weft.remote(num_cpus=0)
    def slow(name, seconds, where=None):
        with open(DIRECTORY + "/" + name, "a") as file:
            file.write(f"{here()}\\n")
        time.sleep(seconds if where in (None, here()) else 0)
        return here()

    @weft.remote(num_cpus=0)
    def large():
        return np.full(1_000_000, 7.0)

    @weft.remote(num_cpus=0)
    class Counter:
        def __init__(self):
            self.count = 0

        def add(self, seconds=0, mark=None, where=None):
            if mark is not None:
                open(mark, "w").close()
            time.sleep(seconds if where in (None, here()) else 0)
            self.count += 1
            return self.count

        def where(self):
            return here()
"""


@pytest.mark.parametrize("way", [pytest.param("both ways", marks=LONG), pytest.param("there", marks=LONG), "back"])
def test_a_short_partition_costs_nothing(nodes, tmp_path, way):
    text = (
        BUSINESS
        + """
    counter = Counter.options(scheduling_strategy=only).remote()
    array = large.options(scheduling_strategy=only, max_retries=0).remote()
    weft.wait([array], fetch_local=False)
    say(weft.get(counter.where.remote(), timeout=30) == only.node_id)
    await_word()  # the cable is cut
    running = [slow.options(scheduling_strategy=only, max_retries=0).remote(f"task-{i}", 2) for i in range(4)]
    calls = [counter.add.remote(0.01) for _ in range(100)]
    total = float(weft.get(array, timeout=50).sum())
    say(total, weft.get(running, timeout=50) == [only.node_id] * 4, weft.get(calls, timeout=50) == list(range(1, 101)))
    del counter, calls, array, running
    say(all_is_free())
    """
    )
    with Talk(nodes, text, 2) as program:
        assert program.hear() is True
        cut(nodes.machines[1], nodes.machines[2], way, True)
        program.tell()
        time.sleep(SHORT)  # the partition itself
        cut(nodes.machines[1], nodes.machines[2], way, False)
        assert program.hear() == [7e6, True, True]
        assert program.hear() is True
    assert nodes.states() == {"machine-1": "ALIVE", "machine-2": "ALIVE", "machine-3": "ALIVE"}
    for i in range(4):
        assert len((tmp_path / f"task-{i}").read_text().splitlines()) == 1
    assert "is no longer in the cluster" not in log_of(nodes, 1)


@pytest.mark.parametrize("way", ["both ways", pytest.param("there", marks=LONG), pytest.param("back", marks=LONG)])
def test_of_two_that_cannot_reach_each_other_one_leaves_and_comes_back(nodes, tmp_path, way):
    text = (
        BUSINESS
        + """
    lasting = Counter.options(scheduling_strategy=third, max_restarts=1, max_task_retries=-1).remote()
    mortal = Counter.options(scheduling_strategy=third).remote()
    array = large.options(scheduling_strategy=third).remote()
    weft.wait([array], fetch_local=False)
    say(weft.get([lasting.where.remote(), mortal.where.remote()], timeout=30) == [third.node_id] * 2)
    tried = slow.options(scheduling_strategy=third).remote("tried", 3600, third.node_id)
    once = slow.options(scheduling_strategy=third, max_retries=0).remote("once", 3600, third.node_id)
    calls = [
        actor.add.remote(3600, DIRECTORY + "/" + name, third.node_id)
        for actor, name in ((lasting, "lasting"), (mortal, "mortal"))
    ]
    while not all(os.path.exists(DIRECTORY + "/" + name) for name in ("tried", "once", "lasting", "mortal")):
        time.sleep(0.01)
    say("busy")
    await_word()  # the cable is cut
    begin = time.monotonic()
    sums = weft.remote(lambda a: float(a.sum())).options(num_cpus=0).remote(array)
    ran_on = outcome(tried)
    say(ran_on[0], ran_on[1] != third.node_id)
    say(*outcome(once))
    say(*outcome(calls[0]))
    say(*outcome(calls[1]))
    say(*outcome(sums))
    say(time.monotonic() - begin)
    await_word()  # it is back
    back = NodeAffinity(node_of("machine-3"))
    ran_on = outcome(slow.options(scheduling_strategy=back).remote("back", 0))
    say(back.node_id != third.node_id, ran_on[1] == back.node_id)
    del lasting, mortal, array, tried, once, calls, sums
    say(all_is_free())
    """
    )
    with Talk(nodes, text, 2) as program:
        assert program.hear() is True
        assert program.hear() == "busy"
        cut(nodes.machines[1], nodes.machines[2], way, True)
        program.tell()
        assert program.hear() == ["value", True]
        kind, why = program.hear()
        assert kind == "WorkerCrashedError" and "could not reach" in why and "machine-2" in why, why
        assert program.hear() == ["value", 1]
        kind, why = program.hear()
        assert kind == "ActorDiedError" and "could not reach" in why, why
        assert program.hear() == ["value", 7e6]
        assert program.hear() < RESOLVED
        # machine-2 stays: it was there first.
        assert nodes.states() == {"machine-1": "ALIVE", "machine-2": "ALIVE", "machine-3": "DEAD"}
        cut(nodes.machines[1], nodes.machines[2], way, False)
        wait_until(lambda: nodes.states()["machine-3"] == "ALIVE", SECONDS, "it has joined again")
        program.tell()
        assert program.hear() == [True, True]
        assert program.hear() is True
    # What ran in the first life of machine-3 ran once more at most, and the one without retries not again.
    assert len((tmp_path / "tried").read_text().splitlines()) == 2
    assert len((tmp_path / "once").read_text().splitlines()) == 1
    assert "and may come back in" in log_of(nodes, 3)
    for pid in nodes.pids:
        wait_until(lambda pid=pid: not children(pid), 10, "no process is left over")


def test_a_call_between_two_nodes_that_have_nothing_else_to_do_with_each_other(nodes, tmp_path):
    """The driver and the home of the actor are on the head; a task on machine-2 calls the actor on machine-3."""
    text = (
        BUSINESS
        + """
    counter = Counter.options(scheduling_strategy=only).remote()
    weft.get(counter.add.remote(), timeout=30)

    @weft.remote(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinity(node_of("machine-2")))
    def calls(counter, seconds, mark=None):
        try:
            return "value", weft.get(counter.add.remote(seconds, mark), timeout=50)
        except Exception as error:
            return type(error).__name__, str(error)

    say(weft.get(calls.remote(counter, 0), timeout=30)[1])
    pending = calls.remote(counter, 3600, DIRECTORY + "/called")
    while not os.path.exists(DIRECTORY + "/called"):
        time.sleep(0.01)
    say("called")
    await_word()
    begin = time.monotonic()
    say(*weft.get(pending, timeout=50))
    say(time.monotonic() - begin)
    """
    )
    with Talk(nodes, text) as program:
        assert program.hear() == 2
        assert program.hear() == "called"
        cut(nodes.machines[1], nodes.machines[2], "both ways", True)
        program.tell()
        kind, why = program.hear()
        assert kind == "ActorDiedError" and "could not reach" in why, (kind, why)
        assert program.hear() < RESOLVED


def test_a_new_head_is_told_too(nodes):
    """The head is killed when it has heard that two nodes cannot reach each other, before it has judged."""
    text = (
        BUSINESS
        + """
    tried = slow.options(scheduling_strategy=third).remote("tried", 3600, third.node_id)
    while not os.path.exists(DIRECTORY + "/tried"):
        time.sleep(0.01)
    say("busy")
    ran_on = outcome(tried)
    say(ran_on[0], ran_on[1] != third.node_id)
    """
    )
    with Talk(nodes, text, 2) as program:
        assert program.hear() == "busy"
        cut(nodes.machines[1], nodes.machines[2], "both ways", True)
        wait_until(lambda: "cannot be reached from here" in log_of(nodes, 2), 20, "it complains")
        os.kill(nodes.pids[0], signal.SIGKILL)
        nodes.address = ""
        nodes.add(nodes.machines[0], "machine-1", "--resource=machine-1=10")
        assert program.hear() == ["value", True]
        assert "must leave the cluster" in log_of(nodes, 4)


@pytest.mark.parametrize("way", ["there", pytest.param("back", marks=LONG)])
def test_one_way_between_a_node_and_the_head(nodes, way):
    text = """
    @weft.remote(num_cpus=0, resources={"machine-3": 1})
    def ask():
        return here()

    first = weft.get(ask.remote(), timeout=30)
    say("there")
    await_word()
    second = weft.get(ask.remote(), timeout=50)
    say(first != second)
    del first, second
    say(all_is_free())
    """
    with Talk(nodes, text) as program:
        assert program.hear() == "there"
        cut(nodes.machines[2], nodes.machines[0], way, True)
        begin = time.monotonic()
        wait_until(lambda: nodes.states()["machine-3"] == "DEAD", 20, "the head has noticed")
        assert time.monotonic() - begin < 13
        cut(nodes.machines[2], nodes.machines[0], way, False)
        wait_until(lambda: nodes.states()["machine-3"] == "ALIVE", SECONDS, "it has joined again")
        program.tell()
        assert program.hear() is True
        assert program.hear() is True


def test_a_node_that_nobody_can_connect_to_leaves_and_is_named(nodes):
    """It reaches the head, and has given an address at which it cannot be reached itself."""
    text = """
    @weft.remote(num_cpus=0, resources={"astray": 1})
    def there():
        return here()

    @weft.remote(num_cpus=0)
    def anywhere():
        return here()

    soft = NodeAffinity(node_of("astray"), soft=True)
    waits = there.remote()
    say(outcome(anywhere.options(scheduling_strategy=soft).remote())[0])
    """
    third = nodes.machines[2]
    nodes.weft(
        *(third, "start", f"--address={nodes.address}", "--host=127.0.0.1", "--num-cpus=1", "--name=astray"),
        "--resource=astray=1",
    )
    try:
        with Talk(nodes, text) as program:
            wait_until(lambda: nodes.states()["astray"] == "DEAD", 30, "it has to leave")
            assert "node 1 (machine-1) could not reach it for" in log_of(nodes, 1)
            assert program.hear() == "value"
    finally:
        nodes.weft(third, "stop")


def test_a_name_that_had_to_leave_is_told_so(nodes, tmp_path):
    """Another daemon that is started with the name of one that has a pause is told why, and does not come in."""
    text = (
        BUSINESS
        + """
    weft.get(slow.options(scheduling_strategy=only).remote("x", 0), timeout=30)
    say("there")
    await_word()
    """
    )
    with Talk(nodes, text, 2) as program:
        assert program.hear() == "there"
        cut(nodes.machines[1], nodes.machines[2], "both ways", True)
        wait_until(lambda: nodes.states()["machine-3"] == "DEAD", 30, "it had to leave")
        wait_until(lambda: "and may come back in" in log_of(nodes, 3), 10, "it waits")
        # Stopped while it waits, and started again by hand: it comes in when the pause is over.
        cut(nodes.machines[1], nodes.machines[2], "both ways", False)
        os.kill(nodes.pids[2], signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{nodes.pids[2]}"), 10, "it has ended")
        nodes.add(nodes.machines[2], "machine-3", "--resource=machine-3=10")
        assert "and may come back in" in log_of(nodes, 4)
        assert nodes.states()["machine-3"] == "ALIVE"


def test_a_program_whose_node_had_to_leave_is_told_so(nodes):
    """The node daemon lives on and comes back; what the program had is gone, and the error says why."""
    text = (
        BUSINESS
        + """
    second = NodeAffinity(node_of("machine-2"))
    waits = slow.options(scheduling_strategy=second).remote("waits", 3600)
    while not os.path.exists(DIRECTORY + "/waits"):
        time.sleep(0.01)
    say("busy")
    say(*outcome(waits))
    try:
        weft.get(slow.remote("again", 0))
    except Exception as error:
        say(type(error).__name__, str(error))
    """
    )
    with Talk(nodes, text, 3) as program:
        assert program.hear() == "busy"
        cut(nodes.machines[1], nodes.machines[2], "both ways", True)
        for kind, why in (program.hear(), program.hear()):
            assert kind == "WeftError" and "this machine was cut off from the cluster" in why, why
            assert "could not reach" in why and "unexpectedly" not in why, why
        cut(nodes.machines[1], nodes.machines[2], "both ways", False)


@pytest.mark.skipif(bool(namespaces.why_not(True, True)), reason=f"no such cables: {namespaces.why_not(True, True)}")
@pytest.mark.parametrize("how, megabytes", [("slow", 10), pytest.param("slow", 50, marks=LONG), ("lossy", 50)])
def test_bad_cables(tmp_path, how, megabytes):
    text = (
        BUSINESS
        + f"""
    data = np.random.default_rng(1).integers(0, 255, {megabytes}_000_000, dtype=np.uint8)
    """
        + """
    far = [NodeAffinity(node_of("machine-2")), NodeAffinity(node_of("machine-3"))]

    @weft.remote(num_cpus=0, max_retries=0)
    def double(i):
        return 2 * i

    @weft.remote(num_cpus=0, max_retries=0)
    def same(array):
        return array

    counter = Counter.options(scheduling_strategy=only).remote()
    array = weft.put(data)
    there = same.options(scheduling_strategy=far[1]).remote(array)
    numbers = [double.options(scheduling_strategy=far[i % 2]).remote(i) for i in range(300)]
    calls = [counter.add.remote() for _ in range(300)]
    say(weft.get(numbers, timeout=100) == [2 * i for i in range(300)])
    say(weft.get(calls, timeout=100) == list(range(1, 301)))
    # Back from the third machine, by way of the second.
    back = same.options(scheduling_strategy=far[0]).remote(there)
    say(bool((weft.get(back, timeout=100) == data).all()))
    """
    )
    with namespaces.Network(3, "200mbit" if how == "slow" else None) as network:
        if how == "lossy":
            for machine in network.machines:
                machine.drop(0.03)
        made = namespaces.Nodes(network, tmp_path)
        try:
            with Talk(made, text) as program:
                for _ in range(3):
                    assert program.hear() is True
            assert made.states() == {"machine-1": "ALIVE", "machine-2": "ALIVE", "machine-3": "ALIVE"}
            assert "is no longer in the cluster" not in log_of(made, 1)
        finally:
            made.end()
