"""Strangers, floods, wrong clocks and full disks: a clear word, daemons that stay, and nothing lost.

Nodes run on this machine, as in test_cluster.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import pytest
from test_cluster import SECONDS, Nodes, gone, until
from test_cluster_head import DETACHED, Headed, finish, needs_redis, say
from test_tls import Authority

WEFT = os.path.join(os.path.dirname(sys.executable), "weft")
WORK = """
    @weft.remote(num_cpus=1)
    def square(x):
        return x * x

    print(sum(weft.get([square.remote(i) for i in range(20)])))
"""
WORKED = f"{sum(i * i for i in range(20))}\n"


class Watched(Nodes):
    """Nodes whose logs and ports can be looked at."""

    def __init__(self, home) -> None:
        super().__init__(home)
        self.home = home

    def log(self, pid: int) -> str:
        return (self.home / "weft" / f"node-{pid}.log").read_text()

    def port(self, pid: int) -> int:
        """The one that it listens on."""
        owned = set()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                owned.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        with open("/proc/net/tcp", encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        (port,) = (int(row[1].partition(":")[2], 16) for row in rows
                   if row[3] == "0A" and f"socket:[{row[9]}]" in owned)  # fmt: skip
        return port

    def descriptors(self, pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    def resident_kb(self, pid: int) -> int:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1])


@pytest.fixture
def nodes(tmp_path):
    made = Watched(tmp_path)
    yield made
    made.end()


class WatchedHead(Watched, Headed):
    """Of which the head is at a port that it can come back to: `port` is that, not a method."""

    def __init__(self, home) -> None:
        super().__init__(home)
        Headed.__init__(self, home)


@pytest.fixture
def headed(tmp_path):
    made = WatchedHead(tmp_path)
    yield made
    made.end()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS)


def everything(connection: socket.socket) -> bytes:
    """What the other side says until its end of the connection is closed; b"reset" if that was rude."""
    said = b""
    try:
        while part := connection.recv(65536):
            said += part
    except ConnectionResetError:
        return said or b"reset"
    return said


# ---- strangers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["head", "node"])
def test_strangers_are_refused_at_once_and_leave_nothing(nodes, which):
    head = nodes.start("--num-cpus=1", "--name=head")
    node = nodes.start("--num-cpus=1", "--name=node")
    assert nodes.output_of(WORK) == WORKED
    until(lambda: not nodes.children())
    pid = head if which == "head" else node
    port, before = nodes.port(pid), nodes.descriptors(pid)

    def refusals(words: str) -> int:
        return len(re.findall(f" link: a connection from 127.0.0.1:.* was refused: .*{words}", nodes.log(pid)))

    # A browser, which gets an answer that it can show.
    with connect(port) as browser:
        browser.sendall(b"GET /index.html HTTP/1.1\r\nHost: weft\r\nAccept: */*\r\n\r\n")
        answer = everything(browser).decode()
    assert answer.startswith("HTTP/1.1 400 ")
    assert "This port is for weft's own protocol, not for HTTP" in answer
    until(lambda: refusals("it speaks HTTP: a browser or a health check at the port of weft's own protocol") == 1)

    # Somebody who believes that TLS is spoken here.
    context = ssl.create_default_context()
    with connect(port) as client, pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(client, server_hostname="weft")
    until(
        lambda: refusals("it speaks TLS and we do not: start all nodes of a cluster with the same --tls options") == 1
    )

    # Others: another protocol, noise, and what begins as it should.
    chance = random.Random(7)
    noises = [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 100, bytes([255]) * 70_000]
    noises += [chance.randbytes(chance.randrange(8, 5_000)) for _ in range(20)]
    for noise in noises:
        with connect(port) as client:
            with contextlib.suppress(OSError):  # it may hang up before all of it is sent
                client.sendall(noise)
            assert everything(client) in (b"", b"reset")
    # Of each kind a few are told, so that nobody fills the disk.
    until(lambda: refusals("what it says is not weft's protocol: check the address and the port") == 10)
    with connect(port) as client:
        client.sendall(b"weftlink" + struct.pack("<III", 1_000_000, 1, 36) + b"n" * 36)
        everything(client)
    until(lambda: refusals("it speaks version 1000000 of the protocol and we speak version") == 1)
    with connect(port) as client:
        client.sendall(b"weftl")
    until(lambda: refusals("the connection ended during the handshake") == 1)

    until(lambda: nodes.descriptors(pid) == before)
    assert not gone(head) and not gone(node)
    assert nodes.output_of(WORK) == WORKED


def test_strangers_at_a_head_with_tls(nodes, tmp_path):
    head = nodes.start("--num-cpus=1", "--name=head", *Authority(tmp_path / "authority").issue("head"))
    port, before = nodes.port(head), nodes.descriptors(head)
    with connect(port) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert everything(browser).startswith(b"HTTP/1.1 400 ")
    until(lambda: "it speaks HTTP: check the address and the port" in nodes.log(head))
    # With TLS, but nothing to prove who it is.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(port) as client, contextlib.suppress(OSError), context.wrap_socket(client) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
        everything(browser)
    until(lambda: "TLS failed to establish: peer did not return a certificate" in nodes.log(head))
    with connect(port) as client:
        client.sendall(b"\x16\x03\x01\x02\x00" + random.Random(3).randbytes(512))
        everything(client)
    with connect(port) as client:
        client.sendall(random.Random(4).randbytes(5_000))
        everything(client)
    until(lambda: "what it says is neither TLS nor weft's protocol" in nodes.log(head))
    until(lambda: nodes.descriptors(head) == before)
    assert nodes.output_of(WORK) == WORKED


IDLE = 1_000


def test_a_thousand_idle_connections_keep_nobody_out(nodes):
    head = nodes.start("--num-cpus=1", "--name=head")
    assert nodes.output_of(WORK) == WORKED
    until(lambda: not nodes.children())
    port, before, memory = nodes.port(head), nodes.descriptors(head), nodes.resident_kb(head)
    with connect(port) as client:
        client.sendall(b"weftlink" + struct.pack("<III", 1_000_000, 1, 36))
        version = struct.unpack("<I", everything(client)[8:12])[0]  # of the refusal
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2 * IDLE:
        pytest.skip(f"only {limits[1]} descriptors may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * IDLE), limits[1]))
    with contextlib.ExitStack() as open_ones:
        open_ones.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        idle = [open_ones.enter_context(connect(port)) for _ in range(IDLE)]
        # Some say a little and then nothing, as if the handshake went on.
        opening = b"weftlink" + struct.pack("<III", version, 1, 36)
        for i, connection in enumerate(idle):
            with contextlib.suppress(OSError):  # refused by now
                connection.sendall(opening[: i % len(opening)])
        # A real program and a real node get in meanwhile.
        assert nodes.output_of(WORK) == WORKED
        nodes.start("--num-cpus=1", "--name=late", "--resource=lamp=1")
        lamp = WORK.replace("num_cpus=1", 'resources={"lamp": 0.1}')
        assert nodes.output_of(lamp) == WORKED
        # Never more than 256 are kept, however many come.
        assert nodes.descriptors(head) < before + 256 + 50
        # And those not for long; dribbling does not help.
        dribbling, begun = open_ones.enter_context(connect(port)), time.monotonic()
        dribbling.settimeout(0.2)
        dribbled = opening + b"n" * 100
        while True:
            assert time.monotonic() - begun < 15
            with contextlib.suppress(OSError):
                dribbling.sendall(dribbled[:1])
            dribbled = dribbled[1:]
            try:
                assert everything(dribbling) in (b"", b"reset")
                break
            except socket.timeout:
                continue
        until(lambda: nodes.descriptors(head) < before + 50)
        assert nodes.resident_kb(head) < memory + 16_000
    assert nodes.log(head).count("\n") < 50, "anybody could fill the disk"
    assert nodes.output_of(lamp) == WORKED


# ---- wrong addresses -------------------------------------------------------------------------------------------------


class Stranger(threading.Thread):
    """A server that is no weft: says this to whoever comes, once it has heard something."""

    def __init__(self, answer) -> None:
        super().__init__(daemon=True)
        self._answer, self._listener = answer, socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    heard = connection.recv(20)
                    if answer := self._answer(heard):
                        connection.sendall(answer)
                        everything(connection)

    def __enter__(self) -> Stranger:
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join()


def refusal_of_version(heard: bytes) -> bytes:
    ours = struct.unpack("<I", heard[8:12])[0]
    return b"weftlink" + struct.pack("<III", ours + 1, 6, 5) + bytes([3, 0, 0, 0, 0])


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda heard: b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP: that is a web server's port"),
        (lambda heard: bytes.fromhex("15030100020246"), "it speaks TLS and we do not"),
        (lambda heard: b"-ERR unknown command\r\n", "what it says is not weft's protocol: check the address"),
        (refusal_of_version, r"it speaks version \d+ of the protocol and we speak version \d+: install the same weft"),
        (lambda heard: heard, "it dials as well: nobody listens at that address"),
        (lambda heard: b"", "the connection ended during the handshake"),
    ],
    ids=["http", "tls", "redis", "version", "echo", "close"],
)
def test_an_address_where_somebody_else_listens(nodes, answer, words):
    nodes.start("--num-cpus=1")  # makes the token
    with Stranger(answer) as stranger:
        done = nodes.run("start", f"--address={stranger.address}", "--name=other", check=False)
    assert done.returncode == 1
    assert stranger.address in done.stderr
    assert re.search(words, done.stderr)


def test_the_address_of_a_node_that_is_not_the_head(nodes):
    nodes.start("--num-cpus=1", "--name=head")
    node = nodes.start("--num-cpus=1", "--name=node")
    done = nodes.run("start", f"--address=127.0.0.1:{nodes.port(node)}", "--name=other", check=False)
    assert done.returncode == 1
    assert f"is the node node, not the head; say --address={nodes.address}" in done.stderr
    assert not gone(node)


def test_a_head_of_another_cluster_at_the_old_address(headed, tmp_path):
    """The node looks for its own head, tells what it finds instead, and neither joins nor ends what it runs."""
    head = headed.start_head()
    node = headed.start("--num-cpus=1", "--name=other")
    program = headed.program_on(
        node,
        """
        counter = Counter.remote()
        print(weft.get(counter.add.remote()), flush=True)
        await_line()
        print(weft.get(counter.add.remote(), timeout=15), flush=True)
        await_line()
        print(weft.get(at_head.remote(), timeout=15), weft.get(counter.add.remote(), timeout=15), flush=True)
        """,
    )
    assert program.stdout.readline() == "1\n"
    headed.kill(head)
    until(lambda: gone(head))
    stranger = headed.start_head(f"--state={tmp_path / 'elsewhere'}")
    words = r"it belongs to the cluster '([0-9a-f]+)' and we belong to '([0-9a-f]+)'"
    found: list = []
    for pid in (node, stranger):
        until(lambda pid=pid: re.search(words, headed.log(pid)))
        found.append(re.search(words, headed.log(pid)).groups())
    assert found[0] == found[1][::-1] and found[0][0] != found[0][1]
    say(program)
    assert program.stdout.readline() == "2\n"
    headed.kill(stranger)
    until(lambda: gone(stranger))
    headed.start_head()
    say(program)
    assert finish(program) == ["at the head 3"]


# ---- clocks ---------------------------------------------------------------------------------------------------------

# The clock on the wall, moved by so many seconds, for a process and all that it starts.
SHIFT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
  const char* text = getenv("WEFT_TEST_SHIFT");
  return text == NULL ? 0 : atol(text);
}
int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return result;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  const int result = (int)syscall(SYS_gettimeofday, now, zone);
  if (result == 0) now->tv_sec += shift();
  return result;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}
"""
HOUR = 3600


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """What the environment of a process must have to live so many seconds from now."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is there to make a library that moves the clock")
    library = tmp_path_factory.mktemp("clock") / "shift.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=SHIFT, text=True, check=True)
    return lambda seconds: {"LD_PRELOAD": str(library), "WEFT_TEST_SHIFT": str(seconds)}


CLOCKS = """
    import time

    @weft.remote(num_cpus=0, resources={"lamp": 0.1})
    def clock(before=0):
        return time.monotonic()

    @weft.remote(num_cpus=0, resources={"lamp": 0.1})
    class Clock:
        def now(self):
            return time.monotonic()

    here = time.monotonic()
    there = weft.get(clock.remote(clock.remote()), timeout=20)
    actor = Clock.options(name="clock", lifetime="detached").remote()
    times = [there - here, weft.get(actor.now.remote(), timeout=20) - here]
    print([round(each / 600) * 600 for each in times])
    print([node["Alive"] for node in weft.nodes()])
    weft.kill(actor)
"""


@pytest.mark.parametrize("hours", [1, -1])
def test_the_clock_of_a_node_may_be_an_hour_off(nodes, shifted, hours):
    nodes.start("--num-cpus=1", "--name=head")
    straight = dict(nodes.environment)
    nodes.environment.update(shifted(hours * HOUR))
    node = nodes.start("--num-cpus=1", "--name=node", "--resource=lamp=1")
    with open(f"/proc/{node}/maps", encoding="ascii") as file:
        assert "shift.so" in file.read()
    nodes.environment = {**straight, "WEFT_NODE": str(nodes.pids[0])}
    assert nodes.output_of(CLOCKS) == "[0, 0]\n[True, True]\n"
    # And a program there, some of whose tasks run at the head.
    nodes.environment = {**straight, "WEFT_NODE": str(node), **shifted(hours * HOUR)}
    assert nodes.output_of(WORK) == WORKED


def test_the_clocks_since_boot_of_two_nodes_have_nothing_in_common(nodes):
    """Those of two machines never have: each began when its machine did."""
    later = ["unshare", "--time", "--monotonic", str(10 * HOUR), "--boottime", str(10 * HOUR), "--fork", "--"]
    if os.geteuid() != 0 or subprocess.run([*later, "true"], capture_output=True).returncode != 0:
        pytest.skip("time namespaces need root and a kernel that has them")
    nodes.start("--num-cpus=1", "--name=head")
    before = nodes.sockets()
    start = [WEFT, "start", f"--address={nodes.address}", "--num-cpus=1", "--name=node", "--resource=lamp=1"]
    subprocess.run([*later, *start], env=nodes.environment, check=True, capture_output=True, timeout=SECONDS)
    (node,) = nodes.sockets() - before
    nodes.pids.append(node)
    nodes.environment["WEFT_NODE"] = str(nodes.pids[0])
    assert nodes.output_of(CLOCKS) == f"{[10 * HOUR] * 2}\n[True, True]\n"


@pytest.mark.parametrize("hours", [1, -1])
def test_certificates_go_by_the_clock(nodes, shifted, tmp_path, hours):
    """An hour ahead they are still valid; an hour behind, one that was just made is not yet, and the error says so."""
    authority = Authority(tmp_path / "authority")
    head = nodes.start("--num-cpus=1", "--name=head", *authority.issue("one"))
    join = ["start", f"--address={nodes.address}", "--num-cpus=1", "--name=node", "--resource=lamp=1", "--json"]
    done = nodes.run(*join, *authority.issue("two"), check=False, **shifted(hours * HOUR))
    if hours > 0:
        assert done.returncode == 0, done.stderr
        nodes.pids.append(int(re.search(r'"pid": (\d+)', done.stdout)[1]))
        nodes.environment["WEFT_NODE"] = str(head)
        assert nodes.output_of(CLOCKS) == "[0, 0]\n[True, True]\n"
    else:
        assert done.returncode == 1
        assert "certificate is not yet valid" in done.stderr
        assert "check the clocks" in done.stderr
    assert not gone(head)


# ---- no room --------------------------------------------------------------------------------------------------------


class Store:
    """Where a head keeps its state, and that can be full."""

    def start_head(self) -> int:
        done = self.try_head()
        assert done.returncode == 0, done.stderr
        self.nodes.address = f"127.0.0.1:{self.nodes.port}"
        self.nodes.pids.append(json.loads(done.stdout)["pid"])
        return self.nodes.pids[-1]


class Disk(Store):
    """On a disk of 2 MB, which only the head sees."""

    ADVICE = "make room on its disk"

    def __init__(self, nodes, folder) -> None:
        if os.geteuid() != 0:
            pytest.skip("mount namespaces need root")
        self.nodes, self.folder = nodes, folder
        folder.mkdir(mode=0o700)
        # It stays when the head ends: a process of ours keeps it.
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=2m,mode=700 none {folder} && echo && cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if not self.keeper.stdout.readline():
            pytest.skip("no mount namespace can be made")

    def try_head(self) -> subprocess.CompletedProcess:
        command = ["nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt", "--", WEFT, "start", "--head", "--json"]
        command += [f"--port={self.nodes.port}", "--num-cpus=1", "--resource=head=1", "--name=head"]
        command += [f"--state={self.folder}"]
        return subprocess.run(command, env=self.nodes.environment, capture_output=True, text=True, timeout=SECONDS)

    def fill(self) -> None:
        # Through the eyes of the keeper.
        with open(f"/proc/{self.keeper.pid}/root{self.folder}/filler", "wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 4096)

    def empty(self) -> None:
        os.unlink(f"/proc/{self.keeper.pid}/root{self.folder}/filler")

    def close(self) -> None:
        self.keeper.stdin.close()
        self.keeper.stdout.close()
        self.keeper.wait(SECONDS)


class Memory(Store):
    """In a Redis."""

    ADVICE = "raise its maxmemory or delete something"

    def __init__(self, nodes, folder) -> None:
        self.nodes, self.where = nodes, nodes.start_redis(folder.parent)

    def try_head(self) -> subprocess.CompletedProcess:
        arguments = [f"--port={self.nodes.port}", "--num-cpus=1", "--resource=head=1", "--name=head"]
        arguments += [f"--redis=redis://{self.where}"]
        return self.nodes.run("start", "--head", "--json", *arguments, check=False)

    def _limit(self, memory: str) -> None:
        port = self.where.split(":")[1]
        subprocess.run(["redis-cli", "-p", port, "config", "set", "maxmemory", memory], check=True, capture_output=True)

    def fill(self) -> None:
        self._limit("1")

    def empty(self) -> None:
        self._limit("0")

    def close(self) -> None:
        pass


@pytest.fixture(params=["disk", pytest.param("redis", marks=needs_redis)])
def store(request, headed, tmp_path):
    made = (Disk if request.param == "disk" else Memory)(headed, tmp_path / "state")
    yield made
    made.close()


FULL = (
    DETACHED
    + """
def keep(name):
    class Large(Plain):
        ballast = os.urandom(100_000)
    return weft.remote(num_cpus=0)(Large).options(name=name, lifetime="detached", resources={"lamp": 0.1}).remote(0)

first = keep("first")
print(weft.get(first.add.remote())[0], flush=True)
await_line()
waiting = [keep(f"later {i}") for i in range(3)]
calls = [each.add.remote() for each in waiting]
# What needs no store goes on, at the head too.
print(weft.get([square.remote(3), at_head.remote()], timeout=15), flush=True)
print(weft.get(first.add.remote(), timeout=15)[0], flush=True)
print(len(weft.wait(calls, num_returns=3, timeout=1)[0]), flush=True)
await_line()
print([count for count, _ in weft.get(calls, timeout=15)], flush=True)
"""
).replace("Kept = weft", "Plain = Kept\nKept = weft")


def test_a_store_without_room(headed, store):
    head = store.start_head()
    node = headed.start("--num-cpus=1", "--name=other", "--resource=lamp=1")
    program = headed.program_on(node, FULL)
    assert program.stdout.readline() == "1\n"
    store.fill()
    say(program)
    assert program.stdout.readline() == "[9, 'at the head']\n"
    assert program.stdout.readline() == "2\n"
    assert program.stdout.readline() == "0\n"
    refused = rf"the control store takes no changes; they wait, and are tried again: .*{store.ADVICE}"
    assert re.search(refused, headed.log(head))
    late = subprocess.Popen(
        [WEFT, "start", f"--address={headed.address}", "--num-cpus=1", "--name=late", "--json"],
        env=headed.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert not gone(head)
    store.empty()
    say(program)
    out, err = program.communicate(timeout=3 * SECONDS)
    assert out == "[1, 1, 1]\n", err
    # The program was told too, once.
    assert len(re.findall(rf"weft: .*Large.* waits until the head can write it down: .*{store.ADVICE}", err)) == 1, err
    assert "the control store takes changes again" in headed.log(head)
    headed.pids.append(json.loads(late.communicate(timeout=SECONDS)[0])["pid"])
    # What was acknowledged is there for the next head.
    headed.kill(head)
    until(lambda: gone(head))
    store.start_head()
    program = headed.program_on(
        node,
        """
        names = ["first", "later 0", "later 1", "later 2"]
        print([weft.get(weft.get_actor(name).add.remote(), timeout=15)[0] for name in names], flush=True)
        """,
    )
    assert finish(program) == ["[3, 2, 2, 2]"]


def test_a_head_that_has_no_room_when_it_starts(headed, store):
    head = store.start_head()
    node = headed.start("--num-cpus=1", "--name=other", "--resource=lamp=1")
    make = """
kept = Kept.options(name="kept", lifetime="detached", resources={"lamp": 1}).remote(0)
print(weft.get(kept.add.remote())[0])
"""
    assert finish(headed.program_on(node, DETACHED + make)) == ["1"]
    headed.kill(head)
    until(lambda: gone(head))
    store.fill()
    done = store.try_head()
    assert done.returncode == 1
    assert store.ADVICE in done.stderr
    store.empty()
    head = store.start_head()
    again = 'print(weft.get(weft.get_actor("kept").add.remote(), timeout=15)[0])'
    assert finish(headed.program_on(node, again)) == ["2"]


@needs_redis
def test_a_node_that_cannot_be_written_down_is_not_taken_in(headed, tmp_path):
    store = Memory(headed, tmp_path / "state")
    head = store.start_head()
    store.fill()
    done = headed.run("start", f"--address={headed.address}", "--num-cpus=1", "--name=late", check=False)
    assert done.returncode == 1
    assert "has not taken this node in: its control store may be full or away; its log says more" in done.stderr
    assert store.ADVICE in headed.log(head)
    store.empty()
    headed.start("--num-cpus=1", "--name=later")
    assert not gone(head)


def test_a_node_that_could_not_start_workers_is_asked_again_when_it_can(nodes):
    """Its lack of memory ends while the program runs. The first tasks fail and name it, later ones run."""
    nodes.start("--num-cpus=1")
    poor = nodes.start("--num-cpus=1", "--resource=far=1", "--name=poor")
    resource.prlimit(poor, resource.RLIMIT_DATA, (4 << 20, resource.RLIM_INFINITY))
    program = nodes.program(
        """
        import time

        @weft.remote(resources={"far": 1})
        def there():
            return "ran"

        @weft.remote(resources={"far": 1})
        class There:
            def here(self):
                return "ran"

        for wanted in (there.remote(), There.remote().here.remote()):
            try:
                weft.get(wanted)
            except weft.UnschedulableError as error:
                print(" ".join(str(error).split()), flush=True)
        input()
        deadline = time.monotonic() + 20
        while True:
            try:
                print(weft.get(there.remote(), timeout=20), weft.get(There.remote().here.remote(), timeout=20))
                break
            except weft.UnschedulableError:
                assert time.monotonic() < deadline
        """,
        stdin=subprocess.PIPE,
    )
    for what in ("task", "actor"):
        said = program.stdout.readline()
        assert "(poor) no worker can be started: the Python program that starts workers" in said, (what, said)
    resource.prlimit(poor, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said, errors = program.communicate("\n", timeout=3 * SECONDS)
    assert program.returncode == 0, errors
    assert said == "ran ran\n"
