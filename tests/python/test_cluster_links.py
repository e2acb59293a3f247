"""Links between nodes that break while everything goes over them: nothing is lost, and nothing runs twice.

The nodes run on this machine, as in test_cluster.py. A link is cut in earnest: its socket is taken out of the daemon
that has it and disconnected, which resets the connection and drops what either side had not sent or read. Channels
between processes belong to those processes; they are cut on their own at the end.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import subprocess
import textwrap
import threading
import time

import pytest
from test_cluster import Nodes
from test_tls import Authority

_LIBC = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
SECONDS = 90


def _sockets_of(pid: int) -> dict:
    """Inode -> descriptor."""
    found = {}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
        except OSError:
            continue  # closed meanwhile
        if match:
            found[int(match[1])] = int(entry.name)
    return found


def _tcp() -> list:
    """(local port, remote port, state, inode)"""
    rows = []
    with open("/proc/net/tcp", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            local, remote = (int(address.partition(":")[2], 16) for address in fields[1:3])
            rows.append((local, remote, fields[3], int(fields[9])))
    return rows


def _take_out(pid: int, fd: int) -> int:
    """A descriptor of ours for what is descriptor fd in that process; -1: it cannot be had."""
    process = os.pidfd_open(pid)
    try:
        return _LIBC.syscall(_PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)


def _why_not() -> str:
    if not hasattr(os, "pidfd_open"):
        return "this Python has no os.pidfd_open"
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        fd = _take_out(child.pid, 0)
        if fd < 0:
            return f"descriptors of other processes cannot be had: {os.strerror(ctypes.get_errno())}"
        os.close(fd)
        return ""
    finally:
        child.stdin.close()
        child.wait()


pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(_why_not()), reason=_why_not()),
]


class Cutter(threading.Thread):
    """Cuts the links between these daemons, one at a time, at either end. Young ones are spared: they may become
    channels of processes."""

    OLD = 0.15  # seconds

    def __init__(self, pids: list, pause: float, seed: int, spared=lambda dialler, listener: False) -> None:
        super().__init__(daemon=True)
        self.cuts = 0
        self._spared = spared  # whose links, by the pids of the two ends
        self._pids, self._pause, self._random = pids, pause, random.Random(seed)
        self._over = threading.Event()
        self._seen: dict = {}  # when, first
        self.failed = ""

    def run(self) -> None:
        try:
            while not self._over.wait(self._pause):
                self._look_and_cut()
        except BaseException as error:
            self.failed = repr(error)
            raise

    def _look_and_cut(self) -> None:
        table = _tcp()
        owned = {inode: (pid, fd, inode) for pid in self._pids for inode, fd in _sockets_of(pid).items()}
        ports = {local for local, _, state, inode in table if state == "0A" and inode in owned}
        ends = {(local, remote): owned[inode] for local, remote, state, inode in table
                if state == "01" and inode in owned}  # fmt: skip
        # Both ends must be one of ours each, in different daemons.
        links = {
            (local, remote)
            for (local, remote), (pid, _, _) in ends.items()
            if remote in ports
            and (remote, local) in ends
            and ends[remote, local][0] != pid
            and not self._spared(pid, ends[remote, local][0])
        }
        now = time.monotonic()
        self._seen = {link: self._seen.get(link, now) for link in links}
        old = sorted(link for link, when in self._seen.items() if now - when >= self.OLD)
        if not old:
            return
        local, remote = self._random.choice(old)
        pid, fd, inode = ends[self._random.choice([(local, remote), (remote, local)])]
        taken = _take_out(pid, fd)
        if taken < 0:
            return  # closed meanwhile
        try:
            # Another may have taken the number since we looked.
            if os.readlink(f"/proc/self/fd/{taken}") == f"socket:[{inode}]":
                nowhere = (ctypes.c_ushort * 8)()  # AF_UNSPEC
                self.cuts += _LIBC.connect(taken, ctypes.byref(nowhere), ctypes.sizeof(nowhere)) == 0
        finally:
            os.close(taken)

    def end(self) -> None:
        self._over.set()
        self.join()
        assert not self.failed, self.failed


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    made.end()


WORK = """
import os
import time

import numpy as np

RAN = {ran!r}
here = dict(num_cpus=0, resources={{"here": 0.01}}, max_retries=0)
there = dict(num_cpus=0, resources={{"there": 0.01}}, max_retries=0)


def note(what):
    file = os.open(RAN, os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{{what}}\\n".encode())
    os.close(file)


@weft.remote(**there)
def double(i):
    note(f"double {{i}}")
    return 2 * i


@weft.remote(**there)
def made(i):
    note(f"made {{i}}")
    return np.full(400_000, i, dtype=np.int64)


@weft.remote(**there)
def read(i, array):
    note(f"read {{i}}")
    return int(array.sum())


@weft.remote(**there)
def borrow(i, box):
    # The value is asked of its owner, on the other node, and the reference given back is owned here.
    note(f"borrow {{i}}")
    return [weft.put(weft.get(box[0]) + 1), box[0]]


@weft.remote(num_cpus=0, resources={{"there": 0.01}})
class Counter:
    def __init__(self):
        self.count = 0

    def add(self, what):
        note(what)
        self.count += 1
        return self.count


@weft.remote(**here)
def call(i, counter):
    note(f"call {{i}}")
    return weft.get(counter.add.remote(f"far {{i}}"))


def work(number, counter):
    doubled = [double.remote(f"{{number}}-{{i}}") for i in range(20)]
    arrays = [made.remote(100 * number + i) for i in range(3)]
    source = weft.put(np.full(300_000, number, dtype=np.int64))
    sums = [read.remote(f"{{number}}-{{i}}", source) for i in range(3)]
    small = [weft.put(10 * number + i) for i in range(5)]
    boxes = [borrow.remote(f"{{number}}-{{i}}", [small[i]]) for i in range(5)]
    adds = [counter.add.remote(f"add {{number}}-{{i}}") for i in range(10)]
    short = Counter.remote()
    once = short.add.remote(f"short {{number}}")
    assert weft.get(once, timeout=60) == 1  # another caller may be first, unless it has been called
    calls = [call.remote(f"{{number}}-{{i}}", short) for i in range(2)]
    assert weft.get(doubled, timeout=60) == [2 * f"{{number}}-{{i}}" for i in range(20)]
    for i, array in enumerate(weft.get(arrays, timeout=60)):
        assert array.shape == (400_000,) and (array == 100 * number + i).all()
    assert weft.get(sums, timeout=60) == [300_000 * number] * 3
    for i, (mine, yours) in enumerate(weft.get(boxes, timeout=60)):
        assert weft.get(mine, timeout=60) == 10 * number + i + 1
        assert weft.get(yours, timeout=60) == 10 * number + i
    assert weft.get(adds, timeout=60) == list(range(10 * number + 1, 10 * number + 11))
    assert sorted(weft.get(calls, timeout=60)) == [2, 3]


def expected(rounds):
    lines = []
    for n in range(rounds):
        lines += [f"double {{n}}-{{i}}" for i in range(20)] + [f"made {{100 * n + i}}" for i in range(3)]
        lines += [f"read {{n}}-{{i}}" for i in range(3)] + [f"borrow {{n}}-{{i}}" for i in range(5)]
        lines += [f"add {{n}}-{{i}}" for i in range(10)] + [f"short {{n}}"]
        lines += [f"{{what}} {{n}}-{{i}}" for what in ("call", "far") for i in range(2)]
    return sorted(lines)
"""


def run_while_cut(nodes, tmp_path, driver_node: int, cutter: Cutter, cuts: int, more: str = "") -> None:
    ran, enough = tmp_path / "ran", tmp_path / "enough"
    ran.touch()
    nodes.environment["WEFT_NODE"] = str(driver_node)
    program = nodes.program(
        WORK.format(ran=str(ran))
        + textwrap.dedent(more)
        + textwrap.dedent(f"""
        counter = Counter.remote()
        weft.get(call.remote("first", counter), timeout=60)
        print("begun", flush=True)
        rounds = 0
        extra = globals().get("extra", lambda number: None)
        counter = Counter.remote()
        while not os.path.exists({str(enough)!r}):
            work(rounds, counter)
            extra(rounds)
            rounds += 1
        lines = sorted(line for line in open(RAN).read().splitlines() if "first" not in line)
        wanted = expected(rounds)
        assert lines == wanted, (set(lines) ^ set(wanted), len(lines), len(wanted))
        print("done", rounds, flush=True)
        """)
    )
    try:
        assert program.stdout.readline() == "begun\n", program.stderr.read()
        cutter.start()
        deadline = time.monotonic() + SECONDS
        while cutter.cuts < cuts and program.poll() is None:
            assert time.monotonic() < deadline, f"{cutter.cuts} cuts; {cutter.failed}"
            time.sleep(0.01)
        enough.touch()
        out, err = program.communicate(timeout=SECONDS)
        cutter.end()
    finally:
        program.kill()
        program.wait()
    assert out.startswith("done"), err


def start(nodes, issue=lambda name: []) -> list:
    head = nodes.start("--num-cpus=0", "--name=head", *issue("head"))
    first = nodes.start("--num-cpus=0", "--name=first", "--resource=here=1", *issue("first"))
    second = nodes.start("--num-cpus=0", "--name=second", "--resource=there=1", *issue("second"))
    return [head, first, second]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.faults)])
def test_links_between_two_nodes_are_cut(nodes, tmp_path, seed):
    _, first, second = start(nodes)
    run_while_cut(nodes, tmp_path, first, Cutter([first, second], 0.02, seed), 50)


def test_links_with_the_head_are_cut(nodes, tmp_path):
    head, first, second = start(nodes)
    more = """
    def extra(number):
        # Names are the head's to give.
        named = Counter.options(name=f"named {number}").remote()
        assert weft.get(weft.get_actor(f"named {number}").add.remote(f"named {number}"), timeout=60) == 1

    only_work = expected
    expected = lambda rounds: sorted(only_work(rounds) + [f"named {n}" for n in range(rounds)])
    """
    run_while_cut(nodes, tmp_path, first, Cutter([head, first, second], 0.1, 3), 30, more)


def test_links_with_tls_are_cut(nodes, tmp_path):
    """With TLS the daemons have the connections of channels as well: those are dialled by the first node, where tasks
    are submitted, to the second. All others are links."""
    head, first, second = start(nodes, Authority(tmp_path / "authority").issue)

    def spared(dialler: int, listener: int) -> bool:
        return (dialler, listener) == (first, second)

    run_while_cut(nodes, tmp_path, first, Cutter([head, first, second], 0.05, 5, spared), 40)


def test_a_link_that_is_cut_while_nothing_is_said_costs_nothing(nodes):
    head, first, second = start(nodes)
    nodes.environment["WEFT_NODE"] = str(first)
    program = nodes.program(
        """
        @weft.remote(num_cpus=0, resources={"there": 1})
        class Counter:
            def __init__(self):
                self.count = 0
            def add(self):
                self.count += 1
                return self.count
        counter = Counter.remote()
        print(weft.get(counter.add.remote(), timeout=30), flush=True)
        import sys
        sys.stdin.readline()
        print(weft.get(counter.add.remote(), timeout=30), [node["Alive"] for node in weft.nodes()], flush=True)
        """,
        stdin=subprocess.PIPE,
    )
    assert program.stdout.readline() == "1\n"
    cutter = Cutter([head, first, second], 0.1, 4)
    cutter.start()
    deadline = time.monotonic() + 30
    while cutter.cuts < 5:
        assert time.monotonic() < deadline, cutter.failed
        time.sleep(0.01)
    cutter.end()
    out, err = program.communicate("go\n", timeout=SECONDS)
    assert out == "2 [True, True, True]\n", err


# ---- channels between processes -----------------------------------------------------------------------------------


def cut_channel(pid: int, other: int) -> None:
    """Resets the connection between two processes, at the end of the first."""
    deadline = time.monotonic() + 30
    while True:
        ends = [_sockets_of(process) for process in (pid, other)]
        table = [row for row in _tcp() if row[2] == "01"]
        theirs = {(local, remote) for local, remote, _, inode in table if inode in ends[1]}
        mine = [ends[0][inode] for local, remote, _, inode in table if inode in ends[0] and (remote, local) in theirs]
        if mine:
            break
        assert time.monotonic() < deadline, "no channel"
        time.sleep(0.01)
    (fd,) = mine
    taken = _take_out(pid, fd)
    assert taken >= 0
    nowhere = (ctypes.c_ushort * 8)()  # AF_UNSPEC
    assert _LIBC.connect(taken, ctypes.byref(nowhere), ctypes.sizeof(nowhere)) == 0
    os.close(taken)


def wait_for_text(path) -> str:
    deadline = time.monotonic() + 30
    while True:
        text = path.read_text() if path.exists() else ""
        if text.endswith("\n"):
            return text.strip()
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.01)


@pytest.fixture
def talk(nodes, tmp_path):
    """A program on the first node that runs lines; `there` is a resource of the second."""
    _, first, _ = start(nodes)
    nodes.environment["WEFT_NODE"] = str(first)
    program = nodes.program(
        f"""
        import os, sys, time
        FOLDER = {str(tmp_path)!r}

        def say(name, what):
            with open(os.path.join(FOLDER, name), "w") as file:
                file.write(f"{{what}}\\n")

        def until(name):
            while not os.path.exists(os.path.join(FOLDER, name)):
                time.sleep(0.01)

        @weft.remote(num_cpus=0, resources={{"there": 0.1}})
        def run(name):
            runs = sum(entry.startswith(name + ".run") for entry in os.listdir(FOLDER))
            say(f"{{name}}.run{{runs}}", os.getpid())
            until(name + ".go")
            return runs + 1

        @weft.remote(num_cpus=0, resources={{"there": 0.1}}, max_restarts=1)
        class Counter:
            def __init__(self):
                self.count = 0
            def pid(self):
                return os.getpid()
            def add(self):
                self.count += 1
                return self.count
            def hang(self):
                say("hangs", os.getpid())
                until("never")

        def tried(what):
            try:
                return what()
            except Exception as error:
                return f"{{type(error).__name__}}: {{error}}".replace("\\n", " ")

        for line in sys.stdin:
            print(eval(line), flush=True)
        """,
        stdin=subprocess.PIPE,
    )

    def ask(expression: str, answer: bool = True) -> str:
        program.stdin.write(expression + "\n")
        program.stdin.flush()
        return program.stdout.readline().strip() if answer else ""

    ask.pid, ask.answer = program.pid, lambda: program.stdout.readline().strip()
    yield ask
    program.stdin.close()
    program.wait(30)


@pytest.mark.parametrize("end", ["the program's", "the worker's"])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_channel_is_cut_while_a_task_runs(talk, tmp_path, end, retries):
    talk(f"tried(lambda: weft.get(run.options(max_retries={retries}).remote('a'), timeout=40))", answer=False)
    worker = int(wait_for_text(tmp_path / "a.run0"))
    cut_channel(*((talk.pid, worker) if end == "the program's" else (worker, talk.pid)))
    if retries:
        assert int(wait_for_text(tmp_path / "a.run1")) != worker
        (tmp_path / "a.go").touch()
        assert talk.answer() == "2"
    else:
        said = talk.answer()
        assert said.startswith("WorkerCrashedError") and "connection" in said and "lost" in said, said
        assert not (tmp_path / "a.run1").exists()
    (tmp_path / "b.go").touch()
    assert talk("weft.get(run.remote('b'), timeout=40)") == "1"


def test_a_channel_is_cut_while_an_actor_is_called(talk, tmp_path):
    assert talk("globals().update(counter=Counter.remote()) or weft.get(counter.add.remote(), timeout=40)") == "1"
    worker = int(talk("weft.get(counter.pid.remote(), timeout=40)"))
    talk("tried(lambda: weft.get(counter.hang.remote(), timeout=40))", answer=False)
    wait_for_text(tmp_path / "hangs")
    cut_channel(talk.pid, worker)
    said = talk.answer()
    assert said.startswith("Actor") and "connection" in said, said
    assert talk("weft.get(counter.add.remote(), timeout=40)") == "1"
    assert int(talk("weft.get(counter.pid.remote(), timeout=40)")) != worker


def test_a_channel_is_cut_while_nothing_is_said(talk, tmp_path):
    assert talk("globals().update(counter=Counter.remote()) or weft.get(counter.add.remote(), timeout=40)") == "1"
    worker = int(talk("weft.get(counter.pid.remote(), timeout=40)"))
    cut_channel(worker, talk.pid)
    # What has not been sent has not run.
    assert talk("weft.get(counter.add.options(max_task_retries=1).remote(), timeout=40)") == "1"
    talk("globals().pop('counter') and None")  # it has all that there is of `there`
    (tmp_path / "a.go").touch()
    assert talk("weft.get(run.remote('a'), timeout=40)") == "1"
