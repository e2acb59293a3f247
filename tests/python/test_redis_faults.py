"""What may happen to the Redis that a head keeps its state in: killed, silent, cut off, full, forgetful, or with a user
that may too little. Nobody ends, work goes on, what must be written is written at last, no number is given out twice.

Nodes run on this machine, as in test_cluster.py; where a cable is pulled, in network namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import namespaces
import pytest
from helpers import free_port
from test_cluster import SECONDS, gone, until
from test_cluster_faults import WatchedHead
from test_cluster_head import DETACHED, PROGRAM, answers, finish, needs_redis

WEFT = os.path.join(os.path.dirname(sys.executable), "weft")
CONTROL_STORE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "control_store.md")

pytestmark = [needs_redis, pytest.mark.timeout(180)]


class Server:
    """A Redis that can be killed, and come back with what it had or with what it had earlier."""

    def __init__(self, folder, address: str = "127.0.0.1", command=lambda *words: list(words)) -> None:
        self.folder, self.command, self.host, self.port = folder, command, address, free_port()
        self.address = f"{address}:{self.port}"
        folder.mkdir()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command(
                *("redis-server", "--port", str(self.port), "--bind", self.host, "--dir", str(self.folder)),
                *("--save", "", "--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no"),
            ),
            stdout=subprocess.DEVNULL,
        )
        until(lambda: self.ask("ping") == "PONG")

    def ask(self, *words: str) -> str:
        """As the administrator; what it says."""
        command = self.command("redis-cli", "-h", self.host, "-p", str(self.port), *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout.strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def remember(self) -> None:
        shutil.copytree(self.folder, f"{self.folder}-earlier")

    def forget(self) -> None:
        """Dies, and comes back with what it had when it was told to remember."""
        self.kill()
        shutil.rmtree(self.folder)
        shutil.copytree(f"{self.folder}-earlier", self.folder)
        self.start()


@pytest.fixture
def nodes(tmp_path):
    made = WatchedHead(tmp_path)
    yield made
    made.end()


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / "redis")
    yield made
    made.kill()


def start_later(nodes, name: str) -> subprocess.Popen:
    """A node that wants to join now, and is taken in when it can be."""
    return subprocess.Popen(
        [WEFT, "start", f"--address={nodes.address}", "--num-cpus=1", f"--name={name}", "--json"],
        env=nodes.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def joined(nodes, process: subprocess.Popen) -> int:
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    nodes.pids.append(json.loads(out)["pid"])
    return nodes.pids[-1]


def ids(nodes, pid: int) -> dict:
    """Of the living nodes, as a program at that one sees them: name -> id."""
    listed = finish(nodes.program_on(pid, "print({n['NodeName']: n['NodeID'] for n in weft.nodes() if n['Alive']})"))
    return eval(listed[-1])


BUSY = (
    DETACHED
    + """
import threading
asked = []
threading.Thread(target=lambda: [asked.append(line) for line in sys.stdin], daemon=True).start()
calls, rounds = [], 0
while "end\\n" not in asked:
    if len(calls) < sum(line == "make\\n" for line in asked):
        made = Kept.options(name=f"kept {len(calls)}", lifetime="detached", resources={"lamp": 0.01}).remote(0)
        calls.append(made.add.remote())
    assert weft.get([square.remote(rounds), at_head.remote()], timeout=60) == [rounds * rounds, "at the head"]
    rounds += 1
    time.sleep(0.02)  # others want to work, too
    print(rounds, sum(len(weft.wait([call], timeout=0)[0]) for call in calls), flush=True)
print([count for count, _ in weft.get(calls, timeout=30)], flush=True)
"""
)


class Busy:
    """A program that runs tasks all the time, and makes a detached actor when it is told to."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.rounds = self.ready = 0

    def tell(self, what: str) -> None:
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def work(self, rounds: int = 3) -> int:
        """It has done some more; how many of its actors have answered."""
        until_round = self.rounds + rounds
        while self.rounds < until_round:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.rounds, self.ready = map(int, line.split())
        return self.ready

    def end(self) -> str:
        self.tell("end")
        return finish(self.process)[-1]


def test_redis_is_killed_and_comes_back_while_nodes_join_and_actors_are_made(nodes, server):
    redis = f"--redis=redis://{server.address}"
    head = nodes.start_head(redis)
    node = nodes.start("--num-cpus=1", "--name=other", "--resource=lamp=1")
    busy = Busy(nodes.program_on(node, BUSY))
    busy.work()
    for number in range(3):
        server.kill()
        busy.tell("make")
        later = start_later(nodes, f"later-{number}")
        busy.work(20)
        assert busy.ready == number, "what was not persisted was made"
        assert later.poll() is None
        server.start()
        joined(nodes, later)
        until(lambda done=number + 1: busy.work() == done)
    before = ids(nodes, node)
    assert len(before) == 5
    assert busy.end() == "[1, 1, 1]"
    assert not gone(head)
    # What was acknowledged is there for the next head.
    nodes.kill(head)
    until(lambda: gone(head))
    nodes.start_head(redis)
    again = """
        print([weft.get(weft.get_actor(f"kept {n}").add.remote(), timeout=15)[0] for n in range(3)])
        while sum(n["Alive"] for n in weft.nodes()) != 5:
            time.sleep(0.01)
    """
    assert finish(nodes.program_on(node, again)) == ["[2, 2, 2]"]
    after = ids(nodes, node)
    assert before.pop("head") != after.pop("head")
    assert before == after


def test_redis_forgets_its_last_second(nodes, server):
    """The head notices by itself, and writes anew what it has: a head that comes after it finds all of it."""
    redis = f"--redis=redis://{server.address}"
    head = nodes.start_head(redis)
    node = nodes.start("--num-cpus=1", "--name=other", "--resource=lamp=1")
    server.remember()
    nodes.start("--num-cpus=1", "--name=late")
    make = """
kept = Kept.options(name="kept", lifetime="detached", resources={"lamp": 1}).remote(0)
print(weft.get(kept.add.remote())[0])
"""
    assert finish(nodes.program_on(node, DETACHED + make)) == ["1"]
    before = ids(nodes, node)
    server.forget()
    tables = [f"weft:{{weft}}:table:{name}" for name in ("nodes", "actors")]
    until(lambda: [server.ask("hlen", table) for table in tables] == ["3", "1"])  # though nothing new happens
    assert not gone(head)
    nodes.kill(head)
    until(lambda: gone(head))
    nodes.start_head(redis)
    again = 'print(weft.get(weft.get_actor("kept").add.remote(), timeout=15)[0])'
    assert finish(nodes.program_on(node, again)) == ["2"]
    until(lambda: len(ids(nodes, node)) == 3)
    after = ids(nodes, node)
    assert before.pop("head") != after.pop("head")
    assert before == after


def test_redis_forgets_its_last_second_and_the_head_dies_with_it(nodes, server):
    """What nobody remembers is lost; but the number that a node had is not given to another one."""
    redis = f"--redis=redis://{server.address}"
    head = nodes.start_head(redis)
    node = nodes.start("--num-cpus=1", "--name=other")
    server.remember()
    forgotten = nodes.start("--num-cpus=1", "--name=late")
    before = ids(nodes, node)
    nodes.kill(head)
    nodes.kill(forgotten)
    until(lambda: gone(head) and gone(forgotten))
    server.forget()
    nodes.start_head(redis)
    nodes.start("--num-cpus=1", "--name=new")
    until(lambda: sorted(ids(nodes, node)) == ["head", "new", "other"])
    after = ids(nodes, node)
    assert after["other"] == before["other"]
    assert after["new"] not in before.values() and after["head"] not in before.values()


class Cluster:
    """A head, a standby and a node with a busy program, on one machine or on two; and how their Redis is taken away."""

    def __init__(self, nodes, server, machines=None) -> None:
        self.nodes, self.server = nodes, server
        self.hosts = [machine.address for machine in machines] if machines else ["127.0.0.1"] * 2
        self.commands = [machine.command for machine in machines] if machines else [lambda *words: list(words)] * 2
        self.ports = [free_port(), free_port()]
        self.later: subprocess.Popen | None = None
        self.redis = f"--redis=redis://{server.address}"
        heads = ["--head", self.redis, "--allow-open-redis", "--standby", "--num-cpus=1", "--resource=head=1"]
        self.head = self.start(0, *heads, f"--port={self.ports[0]}", "--name=head")
        self.standby = self.start(1, *heads, f"--port={self.ports[1]}", "--name=standby")
        nodes.address = ",".join(f"{host}:{port}" for host, port in zip(self.hosts, self.ports))
        node = self.start(1, f"--address={nodes.address}", "--num-cpus=1", "--name=other", "--resource=lamp=1")
        nodes.environment["WEFT_NODE"] = str(node)
        program = f"import weft\nweft.init(address={nodes.address!r})\n{PROGRAM}{BUSY}"
        self.busy = Busy(
            subprocess.Popen(
                self.commands[1](sys.executable, "-c", program),
                env=nodes.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        self.busy.work()

    def launch(self, machine: int, *arguments: str) -> subprocess.Popen:
        words = self.commands[machine](WEFT, "start", f"--host={self.hosts[machine]}", "--json", *arguments)
        return subprocess.Popen(
            words, env=self.nodes.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def start(self, machine: int, *arguments: str) -> int:
        return joined(self.nodes, self.launch(machine, *arguments))

    def endures(self, passed: float, outage: float) -> None:
        """Something is done while Redis is away for so long already, and what must be persisted waits."""
        if passed == 0:
            self.busy.tell("make")
        if passed > outage - 10 and self.later is None:  # one that joins gives up after 15 seconds
            self.later = self.launch(1, f"--address={self.nodes.address}", "--num-cpus=1", "--name=later")
        asked = time.monotonic()
        assert self.busy.work(1) == 0, "what was not persisted was made"
        assert time.monotonic() - asked < 10, "work waited for Redis"
        assert self.later is None or self.later.poll() is None, self.later.stderr.read()

    def recovers(self) -> None:
        joined(self.nodes, self.later)
        until(lambda: self.busy.work() == 1)
        assert self.busy.end() == "[1]"
        # Nobody has ended, and nobody has taken over.
        assert not gone(self.head) and not gone(self.standby)
        log = self.nodes.log(self.head)
        assert "the control store takes no changes" in log and "takes changes again" in log
        assert "this head goes on with cluster" not in self.nodes.log(self.standby)


@pytest.mark.parametrize("outage", [12, pytest.param(30, marks=pytest.mark.faults)])
def test_redis_is_away_for_longer_than_the_lease(tmp_path, outage):
    """Two clusters at once, to save time: the Redis of one is paused, that of the other is cut off."""
    with contextlib.ExitStack() as ends:

        def made(name: str, **options):
            folder = tmp_path / name
            folder.mkdir()
            nodes = WatchedHead(folder)
            ends.callback(nodes.end)
            server = Server(folder / "redis", **options)
            ends.callback(server.kill)
            return nodes, server

        paused = Cluster(*made("paused"))
        sufferers = [paused]
        if not namespaces.why_not():
            network = ends.enter_context(namespaces.Network(3))
            *machines, third = network.machines
            cut_off = Cluster(*made("cut-off", address=third.address, command=third.command), machines)
            sufferers.append(cut_off)
            third.plug(False)
            ends.callback(third.plug, True)
        paused.server.process.send_signal(signal.SIGSTOP)
        ends.callback(paused.server.process.send_signal, signal.SIGCONT)
        # One that never finds its store does not wait for ever, and nobody with it.
        empty = f"--redis=redis://127.0.0.1:{free_port()}"
        nowhere = paused.launch(0, "--head", "--standby", "--block", f"--port={free_port()}", empty)
        ends.callback(nowhere.kill)
        begun = time.monotonic()
        passed = 0.0
        while passed < outage:
            for each in sufferers:
                each.endures(passed, outage)
            passed = time.monotonic() - begun
        paused.server.process.send_signal(signal.SIGCONT)
        if len(sufferers) > 1:
            third.plug(True)
        for each in sufferers:
            each.recovers()
        assert "nothing listens there (Connection refused): is Redis started" in nowhere.communicate(timeout=SECONDS)[1]
        assert nowhere.returncode == 1


def test_redis_is_full_for_longer_than_the_lease(nodes, server):
    """Then nobody can lead; the leader stays, and so does the standby."""
    cluster = Cluster(nodes, server)
    server.ask("config", "set", "maxmemory", "1")
    until(lambda: server.ask("exists", "weft:{weft}:lease") == "0")
    log = "the control store takes no changes; they wait, and are tried again: .*raise its maxmemory"
    until(lambda: re.search(log, nodes.log(cluster.standby)))
    cluster.busy.work()
    server.ask("config", "set", "maxmemory", "0")
    until(lambda: server.ask("exists", "weft:{weft}:lease") == "1")
    assert server.ask("hget", "weft:{weft}:fence", "epoch") == "1"
    cluster.busy.work()
    assert not gone(cluster.head) and not gone(cluster.standby)
    # The standby has not lost its purpose. What ran at the head is given up 10 seconds after it leads.
    nodes.kill(cluster.head)
    until(lambda: answers(cluster.ports[1]))
    cluster.busy.tell("make")
    until(lambda: cluster.busy.work() == 1)
    assert cluster.busy.end() == "[1]"


def test_what_a_user_of_redis_may_not_do_is_named(nodes, server, tmp_path):
    rights = re.search(r"ACL SETUSER (weft on) >PASSWORD (.*)", open(CONTROL_STORE).read())
    server.ask("acl", "setuser", *rights[1].split(), ">weaving", *rights[2].split())
    (tmp_path / "password").write_text("weaving\n")
    (tmp_path / "password").chmod(0o600)
    options = ["start", "--head", f"--port={nodes.port}", f"--redis=redis://weft@{server.address}"]
    options += ["--redis-password-file=~/password"]

    def refusal() -> str:
        done = nodes.run(*options, check=False)
        assert done.returncode == 1
        return done.stderr

    server.ask("acl", "setuser", "weft", "-hset", "-rename")
    assert (
        "does not allow the user 'weft' the commands rename, hset; its administrator says: ACL SETUSER weft"
        in refusal()
    )
    server.ask("acl", "setuser", "weft", "+hset", "+rename", "-info")
    assert "the user needs this right (+info)" in refusal()
    server.ask("acl", "setuser", "weft", "+info", "resetkeys", "~other:*")
    assert "the user needs this right (~weft:*)" in refusal()
    server.ask("acl", "setuser", "weft", "resetkeys", "~weft:*")
    head = nodes.start_head(*options[3:])
    # A right that is taken away later: nothing ends, and what must be written waits.
    server.ask("acl", "setuser", "weft", "-evalsha")
    until(lambda: "the user needs this right (+evalsha)" in nodes.log(head))
    later = start_later(nodes, "later")
    server.ask("acl", "setuser", "weft", "+evalsha")
    joined(nodes, later)
    assert not gone(head)
