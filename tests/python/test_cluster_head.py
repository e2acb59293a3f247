"""A head that ends and comes back: what it keeps in SQLite or Redis, what goes on meanwhile, and which head takes over.

Nodes run on this machine, as in test_cluster.py; a program chooses its node by the pid of the daemon.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from helpers import free_port
from test_cluster import SECONDS, Nodes, gone, until

PROGRAM = """
import os
import random
import sys
import time

@weft.remote(num_cpus=1)
def square(x, seconds=0):
    time.sleep(seconds)
    return x * x

@weft.remote(resources={"head": 1}, num_cpus=0)
def at_head():
    return "at the head"

@weft.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.count = 0
    def add(self):
        self.count += 1
        return self.count

def await_line():
    assert sys.stdin.readline(), "nobody says anything"
"""


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class Headed(Nodes):
    """Nodes whose head is at a port that it can come back to."""

    def __init__(self, home) -> None:
        super().__init__(home)
        self.port = free_port()
        self.redis: list = []

    def start_head(self, *arguments, port=None) -> int:
        before = self.sockets()
        port = port or self.port
        self.run("start", "--head", f"--port={port}", "--num-cpus=1", "--resource=head=1", "--name=head", *arguments)
        self.address = f"127.0.0.1:{port}"
        (pid,) = self.sockets() - before
        self.pids.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def program_on(self, pid: int, text: str) -> subprocess.Popen:
        self.environment["WEFT_NODE"] = str(pid)
        return self.program(PROGRAM + textwrap.dedent(text), stdin=subprocess.PIPE)

    def start_redis(self, home, *arguments) -> str:
        folder = home / f"redis-{len(self.redis)}"
        folder.mkdir()
        port = free_port()
        self.redis.append(
            subprocess.Popen(
                ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
                 "--appendonly", "yes", "--appendfsync", "always", *arguments],
                stdout=subprocess.DEVNULL,
            )
        )  # fmt: skip

        until(lambda: answers(port))
        return f"127.0.0.1:{port}"

    def end(self) -> None:
        super().end()
        for server in self.redis:
            server.kill()
            server.wait()


@pytest.fixture
def tmp_path():
    """A short path: the servers that a head starts have sockets in there."""
    path = tempfile.mkdtemp(prefix="weft-")
    yield Path(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def nodes(tmp_path):
    made = Headed(tmp_path)
    yield made
    made.end()


def servers_in(folder) -> list:
    """Redis servers that heads have started there."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "redis-server" in line and str(folder) in line]


def say(program: subprocess.Popen) -> None:
    program.stdin.write("go on\n")
    program.stdin.flush()


def finish(program: subprocess.Popen) -> list:
    out, err = program.communicate(timeout=3 * SECONDS)
    assert program.returncode == 0, err
    return out.splitlines()


needs_redis = pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
BACKENDS = ["sqlite", pytest.param("redis", marks=needs_redis), pytest.param("own_redis", marks=needs_redis)]


@pytest.fixture(params=BACKENDS)
def backend(request, nodes, tmp_path):
    """What a head is told of where to keep its state."""
    if request.param == "sqlite":
        yield []
    elif request.param == "redis":
        yield [f"--redis=redis://{nodes.start_redis(tmp_path)}"]
    else:
        yield ["--with-redis=2"]
        try:
            assert servers_in(tmp_path)
            nodes.run("stop", f"--address={nodes.address}")  # the head ends its servers with it
            until(lambda: not servers_in(tmp_path))
        finally:
            for pid in servers_in(tmp_path):
                os.kill(pid, signal.SIGKILL)


def test_a_program_goes_on_while_the_head_is_killed_and_comes_back(nodes, backend):
    head = nodes.start_head(*backend)
    node = nodes.start("--num-cpus=1", "--name=other")
    program = nodes.program_on(
        node,
        """
        counter = Counter.options(name="counter").remote()
        print(weft.get([square.remote(3), at_head.remote(), counter.add.remote()]), flush=True)
        running = square.remote(7, 0.5)
        await_line()
        print(weft.get([running, counter.add.remote()]), flush=True)  # nobody needs the head for these
        await_line()
        print(weft.get(at_head.remote(), timeout=15), flush=True)
        print(weft.get(weft.get_actor("counter").add.remote(), timeout=15), len(weft.nodes()), flush=True)
        """,
    )
    assert program.stdout.readline() == "[9, 'at the head', 1]\n"
    nodes.kill(head)
    until(lambda: gone(head))
    say(program)
    assert program.stdout.readline() == "[49, 2]\n"
    nodes.start_head(*backend)
    say(program)
    lines = finish(program)
    assert lines[0] == "at the head"
    assert lines[1].split()[0] == "3"


DETACHED = """
class Kept:
    def __init__(self, start):
        self.count = start

    def add(self):
        self.count += 1
        return self.count, os.getpid()

    def leave(self):
        weft.exit_actor()

Kept = weft.remote(num_cpus=0)(Kept)
"""


def test_a_detached_actor_lives_through_the_end_of_the_head(nodes, backend):
    head = nodes.start_head(*backend)
    node = nodes.start("--num-cpus=1", "--name=other", "--resource=lamp=1")
    program = nodes.program_on(
        node,
        DETACHED
        + """
kept = Kept.options(name="kept", lifetime="detached", resources={"lamp": 1}).remote(weft.put(40))
count, pid = weft.get(kept.add.remote())
print(count, flush=True)
await_line()
print(weft.get(kept.add.remote()) == (42, pid), flush=True)  # while there is no head
await_line()
weft.get(at_head.remote(), timeout=15)
again = weft.get_actor("kept")
print(weft.get(again.add.remote(), timeout=20) == (43, pid), weft.get(kept.add.remote()) == (44, pid), flush=True)
await_line()
""",
    )
    assert program.stdout.readline() == "41\n"
    nodes.kill(head)
    until(lambda: gone(head))
    say(program)
    assert program.stdout.readline() == "True\n"
    head = nodes.start_head(*backend)
    say(program)
    assert program.stdout.readline() == "True True\n"
    say(program)
    finish(program)
    # Its creator is gone. Another end of the head, another program; then it is killed for good.
    nodes.kill(head)
    until(lambda: gone(head))
    nodes.start_head(*backend)
    program = nodes.program_on(
        node,
        """
        kept = weft.get_actor("kept")
        print(weft.get(kept.add.remote(), timeout=20)[0], flush=True)
        weft.kill(kept)
        try:
            weft.get(kept.add.remote(), timeout=20)
        except weft.exceptions.ActorDiedError as error:
            print("killed on request" in str(error), flush=True)
        """,
    )
    assert finish(program) == ["45", "True"]


def test_a_detached_actor_that_was_at_the_head_is_started_again(nodes):
    head = nodes.start_head("--resource=lamp=1")
    node = nodes.start("--num-cpus=1", "--name=other")
    program = nodes.program_on(
        node,
        DETACHED
        + """
kept = Kept.options(name="kept", lifetime="detached", resources={"lamp": 1}, max_restarts=1).remote(40)
lost = Kept.options(name="lost", lifetime="detached", resources={"lamp": 0.5}, max_restarts=0).remote(0)
print(weft.get([kept.add.remote(), lost.add.remote()])[0][0], flush=True)
await_line()
print(weft.get(kept.add.remote(), timeout=20)[0], flush=True)
try:
    weft.get(lost.add.remote(), timeout=20)
except weft.exceptions.ActorDiedError as error:
    print(error, flush=True)
await_line()
try:
    weft.get(kept.add.remote(), timeout=20)
except weft.exceptions.ActorDiedError as error:
    print("as often as max_restarts allows" in str(error), flush=True)
try:
    weft.get_actor("kept")
except ValueError as error:
    print("gone", flush=True)
""".replace('lamp": 1}', 'lamp": 0.5}'),
    )
    assert program.stdout.readline() == "41\n"
    nodes.kill(head)
    until(lambda: gone(head))
    head = nodes.start_head("--resource=lamp=1")
    say(program)
    assert program.stdout.readline() == "41\n"  # from the beginning, by another worker
    assert "was lost with the node" in program.stdout.readline()
    nodes.kill(head)
    until(lambda: gone(head))
    nodes.start_head("--resource=lamp=1")
    say(program)
    assert finish(program) == ["True", "gone"]


def test_a_detached_actor_that_ends_while_there_is_no_head(nodes):
    head = nodes.start_head()
    node = nodes.start("--num-cpus=1", "--name=other", "--resource=lamp=1")
    program = nodes.program_on(
        node,
        DETACHED
        + """
options = {"lifetime": "detached", "resources": {"lamp": 0.1}, "max_restarts": -1}
leaves = Kept.options(name="leaves", **options).remote(0)
dies = Kept.options(name="dies", **options).remote(0)
weft.get([leaves.add.remote(), dies.add.remote()])
print(weft.get(dies.add.remote())[1], flush=True)
await_line()
leaves.leave.remote()
print("left", flush=True)
await_line()
print(weft.get(dies.add.remote(), timeout=20)[0], flush=True)  # it begins anew
try:
    weft.get(leaves.add.remote(), timeout=20)
except weft.exceptions.ActorDiedError as error:
    print("ended itself" in str(error), flush=True)
""",
    )
    dies = int(program.stdout.readline())
    nodes.kill(head)
    until(lambda: gone(head))
    os.kill(dies, signal.SIGKILL)
    say(program)
    assert program.stdout.readline() == "left\n"
    until(lambda: gone(dies))
    nodes.start_head()
    say(program)
    assert finish(program) == ["1", "True"]


EDIT = """
local value = redis.call('hget', KEYS[1], ARGV[1])
return redis.call('hset', KEYS[1], ARGV[1], (value:gsub('Kept', 'Bent')))
"""


@needs_redis
def test_who_can_write_to_redis_cannot_plant_code(nodes, tmp_path):
    """What a detached actor is made of is sealed: after any edit the head leaves it out, and says so."""
    where = nodes.start_redis(tmp_path)
    head = nodes.start_head(f"--redis=redis://{where}")
    node = nodes.start("--num-cpus=1", "--name=other")
    program = nodes.program_on(
        node,
        DETACHED + 'print(weft.get(Kept.options(name="kept", lifetime="detached").remote(0).add.remote())[0])',
    )
    assert finish(program) == ["1"]
    nodes.kill(head)
    until(lambda: gone(head))
    port = where.split(":")[1]

    def redis(*arguments: str) -> bytes:
        return subprocess.run(["redis-cli", "-p", port, *arguments], capture_output=True, check=True).stdout

    edited = 0
    for key in redis("--scan").decode().split():
        if "actors" not in key or redis("type", key).strip() != b"hash":
            continue
        for field in redis("hkeys", key).splitlines():
            subprocess.run(["redis-cli", "-p", port, "-x", "eval", EDIT, "1", key], input=field, check=True)
            edited += 1
    assert edited
    nodes.start_head(f"--redis=redis://{where}")
    program = nodes.program_on(
        node,
        """
        try:
            weft.get_actor("kept")
        except ValueError:
            print("unknown")
        """,
    )
    assert finish(program) == ["unknown"]


def test_tasks_that_ran_at_the_head_run_again_when_it_is_back(nodes):
    head = nodes.start_head()
    node = nodes.start("--num-cpus=1")
    program = nodes.program_on(
        node,
        """
        path = os.path.expanduser("~/begun")

        @weft.remote(resources={"head": 1}, num_cpus=0)
        def slow():
            open(path, "w").close()
            time.sleep(1)  # what it is killed in
            return os.getppid()

        first = weft.get(slow.remote())
        os.unlink(path)
        running = slow.remote()
        while not os.path.exists(path):
            time.sleep(0.01)
        print("running", flush=True)
        second = weft.get(running, timeout=30)
        print(first != second, flush=True)
        """,
    )
    while (line := program.stdout.readline()) != "running\n":
        assert line, program.stderr.read()
    nodes.kill(head)
    nodes.start_head()
    assert finish(program)[-1] == "True"


def test_nodes_keep_their_numbers_and_new_ones_get_others(nodes):
    head = nodes.start_head()
    node = nodes.start("--num-cpus=1", "--name=other")
    ids = "print(sorted((n['NodeName'], n['NodeID']) for n in weft.nodes() if n['Alive']))"
    before = finish(nodes.program_on(node, ids))[0]
    nodes.kill(head)
    again = nodes.start_head()
    until(lambda: "other" in finish(nodes.program_on(again, ids))[0])
    after = finish(nodes.program_on(again, ids))[0]
    assert eval(before)[1] == eval(after)[1]  # other
    assert eval(before)[0] != eval(after)[0]  # the head's daemon is a new one


def test_a_node_that_does_not_come_back_is_given_up(nodes):
    head = nodes.start_head()
    node = nodes.start("--num-cpus=1", "--name=other")
    nodes.kill(head)
    nodes.kill(node)
    head = nodes.start_head()
    alive = "print(sum(n['Alive'] for n in weft.nodes()))"
    until(lambda: finish(nodes.program_on(head, alive)) == ["1"])


def test_how_soon_a_silent_node_is_given_up_can_be_said(nodes):
    head = nodes.start_head("--node-timeout=3")
    node = nodes.start("--num-cpus=1", "--name=other")

    def state() -> str:
        listed = nodes.run("list", "nodes", f"--session={head}").stdout
        return dict(line.split()[:2] for line in listed.splitlines())["other"]

    assert state() == "ALIVE"
    begun = time.monotonic()
    os.kill(node, signal.SIGSTOP)
    until(lambda: state() == "DEAD")
    assert time.monotonic() - begun < 3 + 1.5  # looking takes a while itself
    os.kill(node, signal.SIGCONT)
    until(lambda: state() == "ALIVE")
    for wrong in ("1", "3601", "soon"):
        refused = nodes.run("start", "--head", "--port=0", f"--node-timeout={wrong}", check=False)
        assert refused.returncode == 2 and "--node-timeout" in refused.stderr, refused.stderr
    refused = nodes.run("start", f"--address={nodes.address}", "--node-timeout=3", check=False)
    assert refused.returncode == 2 and "is for --head" in refused.stderr, refused.stderr


def test_a_second_head_with_the_same_state_is_refused(nodes):
    nodes.start_head()
    done = nodes.run("start", "--head", f"--port={nodes.port}", check=False)
    assert done.returncode == 1
    assert "another head with the state in" in done.stderr


@needs_redis
def test_a_second_head_on_the_same_redis_is_refused(nodes, tmp_path):
    redis = f"--redis=redis://{nodes.start_redis(tmp_path)}"
    nodes.start_head(redis)
    done = nodes.run("start", "--head", f"--port={free_port()}", redis, check=False)
    assert done.returncode == 1
    assert "another head leads this cluster" in done.stderr
    assert "--standby" in done.stderr


@needs_redis
def test_a_password_is_kept_from_others(nodes, tmp_path):
    address = nodes.start_redis(tmp_path, "--requirepass", "open-sesame")
    done = nodes.run("start", "--head", f"--port={nodes.port}", f"--redis=redis://{address}", check=False)
    assert done.returncode == 1
    assert "NOAUTH" in done.stderr or "password" in done.stderr
    secret = tmp_path / "password"
    secret.write_text("open-sesame\n")
    secret.chmod(0o644)
    with_file = [f"--redis=redis://{address}", f"--redis-password-file={secret}"]
    done = nodes.run("start", "--head", f"--port={nodes.port}", *with_file, check=False)
    assert done.returncode == 2
    assert "others can get at the password" in done.stderr
    secret.chmod(0o600)
    head = nodes.start_head(*with_file)
    nodes.kill(head)
    head = nodes.start_head(f"--redis=redis://:open-sesame@{address}")
    with open(f"/proc/{head}/cmdline", encoding="ascii") as file:
        assert "open-sesame" not in file.read()


class Pair:
    """Two heads on one Redis, of which the second waits, and a node."""

    def __init__(self, nodes, home) -> None:
        self.redis = f"--redis=redis://{nodes.start_redis(home)}"
        self.first = nodes.start_head(self.redis)
        self.second_port = free_port()
        done = nodes.run(
            "start", "--head", f"--port={self.second_port}", self.redis, "--standby", "--num-cpus=1",
            "--resource=head=1", "--name=second", "--json",
        )  # fmt: skip
        self.second = json.loads(done.stdout)["pid"]
        nodes.pids.append(self.second)
        both = f"127.0.0.1:{nodes.port},127.0.0.1:{self.second_port}"
        done = nodes.run("start", f"--address={both}", "--num-cpus=1", "--name=other", "--resource=lamp=1", "--json")
        nodes.address = both
        self.node = json.loads(done.stdout)["pid"]
        nodes.pids.append(self.node)


@needs_redis
def test_a_standby_takes_over(nodes, tmp_path):
    heads = Pair(nodes, tmp_path)
    program = nodes.program_on(
        heads.node,
        """
        print(weft.get([square.remote(2), at_head.remote()]), flush=True)
        await_line()
        print(weft.get([square.remote(3), at_head.remote()], timeout=40), flush=True)
        """,
    )
    assert program.stdout.readline() == "[4, 'at the head']\n"
    assert not answers(heads.second_port)
    nodes.kill(heads.first)
    until(lambda: answers(heads.second_port))
    say(program)
    assert finish(program) == ["[9, 'at the head']"]
    # The former head is no longer one, as long as the other lives.
    done = nodes.run("start", "--head", f"--port={nodes.port}", heads.redis, check=False)
    assert done.returncode == 1
    assert "another head leads" in done.stderr


@needs_redis
def test_a_standby_takes_over_at_once_from_a_head_that_is_stopped(nodes, tmp_path):
    heads = Pair(nodes, tmp_path)
    os.kill(heads.first, signal.SIGTERM)
    until(lambda: gone(heads.first))
    stopped = time.monotonic()
    until(lambda: answers(heads.second_port))
    assert time.monotonic() - stopped < 4  # the lease alone lasts 5 seconds
    program = nodes.program_on(heads.node, "print(weft.get(at_head.remote(), timeout=15))")
    assert finish(program) == ["at the head"]


LIVING = (
    DETACHED
    + """
options = {"lifetime": "detached", "max_restarts": -1, "resources": {"lamp": 0.1}}
stays, dies = (Kept.options(name=name, **options).remote(0) for name in ("stays", "dies"))
at_first = Kept.options(name="at first", lifetime="detached", max_restarts=1, resources={"head": 0.5}).remote(0)
before = weft.get([each.add.remote() for each in (stays, dies, at_first)])
print(before[1][1], flush=True)
await_line()
# Found by name, called by a handle from before, restarted.
print(weft.get(at_head.remote(), timeout=40), weft.get(square.remote(3), timeout=15), flush=True)
print(weft.get([weft.get_actor("stays").add.remote(), stays.add.remote()], timeout=40)
      == [(2, before[0][1]), (3, before[0][1])], flush=True)
print([weft.get(each.add.remote(), timeout=40)[0] for each in (dies, at_first)], flush=True)
made = Kept.options(name="made", **options).remote(10)
print(weft.get(made.add.remote(), timeout=40)[0], flush=True)
await_line()
print(weft.get([each.add.remote() for each in (stays, dies, at_first, made)], timeout=15)[0][0],
      sorted(entry["name"] for entry in weft.list_named_actors(all_namespaces=True)), flush=True)
"""
)


@needs_redis
@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.faults), "paused"])
def test_a_standby_takes_over_detached_actors(nodes, tmp_path, how):
    """Also from a head that was only paused: when it goes on, it finds that it leads no longer, and ends."""
    heads = Pair(nodes, tmp_path)
    program = nodes.program_on(heads.node, LIVING)
    dies = int(program.stdout.readline())
    if how == "killed":
        nodes.kill(heads.first)
    else:
        os.kill(heads.first, signal.SIGSTOP)
    os.kill(dies, signal.SIGKILL)
    until(lambda: answers(heads.second_port))
    say(program)
    assert program.stdout.readline() == "at the head 9\n", program.communicate(timeout=SECONDS)
    assert program.stdout.readline() == "True\n"
    assert program.stdout.readline() == "[1, 1]\n"
    assert program.stdout.readline() == "11\n"
    if how == "paused":
        os.kill(heads.first, signal.SIGCONT)
        until(lambda: gone(heads.first))
        log = (tmp_path / "weft" / f"node-{heads.first}.log").read_text()
        assert "another head has taken over this cluster" in log
    say(program)
    assert finish(program) == ["4 ['at first', 'dies', 'made', 'stays']"]
    assert not gone(heads.second) and not gone(heads.node)


@needs_redis
def test_redis_may_be_away_for_a_while(nodes, tmp_path):
    redis = f"--redis=redis://{nodes.start_redis(tmp_path)}"
    head = nodes.start_head(redis)
    node = nodes.start("--num-cpus=1")
    program = nodes.program_on(
        node,
        """
        print(weft.get([square.remote(2), at_head.remote()]), flush=True)
        await_line()
        print(weft.get([square.remote(3), at_head.remote()], timeout=15), flush=True)
        """,
    )
    assert program.stdout.readline() == "[4, 'at the head']\n"
    nodes.redis[0].send_signal(signal.SIGSTOP)
    time.sleep(7)  # longer than the head's lease in Redis: the length is what is tested
    say(program)
    assert finish(program) == ["[9, 'at the head']"]  # a member needs no store
    nodes.redis[0].send_signal(signal.SIGCONT)
    nodes.start("--num-cpus=1", "--name=late")
    assert not gone(head)
