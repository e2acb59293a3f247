"""`weft list`, `summary`, `status`, `logs`, `stack`, `timeline`, as a person calls them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import weft
from helpers import hold, wait_until
from weft import _core, _observe

# The console script is one import and one call.
WEFT = [sys.executable, "-c", "import sys; from weft._cli import main; sys.exit(main())"]


def weft_command(*arguments, check=True):
    result = subprocess.run([*WEFT, *arguments], capture_output=True, text=True, timeout=60)
    if check:
        assert result.returncode == 0, result.stderr
    return result


@weft.remote
def waits_here(path):
    print("before the gate", flush=True)
    hold(path)


@weft.remote
def sleeps_here(path):
    open(path, "w").close()
    time.sleep(600)


@pytest.fixture
def own(no_session):
    """A session, and the option that chooses it: other tests may have sessions too."""
    weft.init(num_cpus=2)
    return ["--session", str(os.getpid())]


def test_list(own, gate):
    ref = waits_here.remote(gate.path)
    command = ["list", "tasks", "--filter", "state=RUNNING", "--json", *own]
    wait_until(lambda: json.loads(weft_command(*command).stdout) != [])
    (row,) = json.loads(weft_command(*command).stdout)
    assert (row["name"], row["task_id"]) == ("waits_here", ref.hex())
    table = weft_command("list", "tasks", *own).stdout
    assert table.split()[0] == "TASK_ID" and "waits_here" in table and "RUNNING" in table
    for what in ("objects", "workers", "nodes"):
        rows = json.loads(weft_command("list", what, "--json", *own).stdout)
        assert rows, what
        assert len(weft_command("list", what, *own).stdout.splitlines()) == len(rows) + 1
    assert weft_command("list", "actors", *own).stdout == ""
    gate.open()
    weft.get(ref)


def test_summary_and_status(own, gate):
    ref = waits_here.remote(gate.path)
    wait_until(lambda: "waits_here: 1 RUNNING" in weft_command("summary", *own).stdout)
    assert json.loads(weft_command("summary", "--json", *own).stdout)["tasks"]["waits_here"]
    status = weft_command("status").stdout
    assert f"driver {os.getpid()}" in status and "CPU: 1 of 2 in use" in status
    assert any(node["driver_pid"] == os.getpid() for node in json.loads(weft_command("status", "--json").stdout))
    gate.open()
    weft.get(ref)


def test_logs(own, gate, capfd):
    ref = waits_here.remote(gate.path)
    wait_until(lambda: "before the gate" in weft_command("logs", *own).stdout)
    (worker,) = [row for row in weft.state.list_workers() if row["running"]]
    text = weft_command("logs", str(worker["pid"]), *own).stdout
    assert text == f"(worker pid={worker['pid']}) before the gate\n"
    assert weft_command("logs", "1", *own, check=False).returncode == 1
    gate.open()
    weft.get(ref)


def test_logs_are_bounded(own):
    @weft.remote
    def talk():
        for i in range(20_000):
            print(f"line {i}")
        return os.getpid()

    pid = weft.get(talk.remote())
    wait_until(lambda: "line 19999\n" in weft_command("logs", str(pid), *own).stdout)
    text = weft_command("logs", str(pid), *own).stdout
    assert "line 0\n" not in text
    seen = _observe.observe(_observe.OUTPUT)
    assert 1000 < sum(len(text) for _, _, _, text in seen["output"]) <= 16 * 1024


def test_stack_of_a_sleeping_worker_and_of_the_driver(own, tmp_path):
    path = str(tmp_path / "sleeping")
    ref = sleeps_here.remote(path)
    wait_until(lambda: os.path.exists(path))
    for _ in range(3):  # and it is none the worse for it
        text = weft_command("stack", *own).stdout
        assert "in sleeps_here" in text
        assert f"---- driver pid={os.getpid()}" in text
        assert "in test_stack_of_a_sleeping_worker_and_of_the_driver" in text
    assert not _core.is_ready(ref)
    (worker,) = [row for row in weft.state.list_workers() if row["running"]]
    text = weft_command("stack", str(worker["pid"]), *own).stdout
    assert "in sleeps_here" in text and "driver" not in text
    assert weft_command("stack", "1", *own, check=False).returncode == 1


def test_a_stopped_process_does_not_keep_others_from_answering(own, gate):
    refs = [waits_here.remote(gate.path) for _ in range(2)]
    wait_until(lambda: sum(bool(row["running"]) for row in weft.state.list_workers()) == 2)
    stopped = next(row["pid"] for row in weft.state.list_workers() if row["running"])
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert len(json.loads(weft_command("list", "tasks", "--json", *own).stdout)) == 2
        text = weft_command("stack", *own).stdout
        assert "did not answer" in text and "in waits_here" in text
    finally:
        os.kill(stopped, signal.SIGCONT)
    gate.open()
    weft.get(refs)


def test_timeline(own, tmp_path):
    weft.get([weft.remote(lambda: 1).options(name="one").remote() for _ in range(3)])
    path = tmp_path / "trace.json"
    assert weft_command("timeline", "-o", str(path), *own).stdout.strip() == str(path)
    assert sum(event["name"] == "one" for event in json.loads(path.read_text())) == 3
    page = tmp_path / "trace.html"
    weft_command("timeline", "-o", str(page), *own)
    assert "<canvas" in page.read_text()
    assert weft_command("timeline", "-o", "/nonexistent/x.json", *own, check=False).returncode == 1


def test_no_session_is_a_clear_message(no_session):
    result = weft_command("list", "tasks", "--session", "1", check=False)
    assert result.returncode == 1
    assert "weft status" in result.stderr
    if not _observe.sessions():
        for command in (["list", "tasks"], ["summary"], ["status"], ["logs"], ["stack"], ["timeline"]):
            result = weft_command(*command, check=False)
            assert (result.returncode, result.stdout) == (1, "")
            assert "no session" in result.stderr and "weft.init()" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "things"],
        ["list", "tasks", "--nonsense"],
        ["list", "tasks", "--limit", "many"],
        ["list", "tasks", "--filter", "state"],
        ["list", "tasks", "--session"],
        ["list", "tasks", "--filter", "state=RUNING"],
        ["summary", "x"],
        ["stack", "abc"],
    ],
)
def test_wrong_usage(own, arguments):
    result = weft_command(*arguments, check=False)
    assert result.returncode == 2, result.stderr
    assert "usage: weft" in result.stderr


def test_help():
    for command in ("list", "summary", "status", "logs", "stack", "timeline"):
        assert weft_command(command, "--help").stdout.startswith(f"usage: weft {command}")
        assert f"  {command} " in weft_command("--help").stdout


def test_nothing_is_left_behind(no_session):
    program = (
        "import weft, os; weft.init(num_cpus=1); print(weft._core.node_pid(), flush=True); os.kill(os.getpid(), 9)"
    )
    daemon = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout)
    wait_until(lambda: daemon not in [session.pid for session in _observe.sessions()])


# ---- the way in ------------------------------------------------------------------------------------------------------


def connect():
    observer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    observer.connect(f"\0weft-session-{os.geteuid()}-{_core.node_pid()}")
    observer.settimeout(10)
    return observer


@pytest.mark.parametrize(
    "nonsense",
    [b"\xff" * 64, b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x02\0\0\0\x0c\0", b"\x0e\0\0\0\x26\0" + b"\xff" * 12],
    ids=["ones", "zeros", "http", "farewell", "another version"],
)
def test_nonsense_ends_only_its_connection(own, nonsense):
    with connect() as observer:
        observer.sendall(nonsense)
        assert observer.recv(1) == b"", "the daemon closes it"
    assert weft.state.list_nodes()
    assert weft.get(weft.remote(lambda: 5).remote()) == 5


def test_idle_connections_make_room_for_new_ones(own):
    idle = [connect() for _ in range(50)]
    assert weft.state.list_nodes()
    assert weft.get(weft.remote(lambda: 5).remote()) == 5
    for observer in idle:
        observer.close()


def test_others_are_not_let_in(own):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    program = f"""
import os
from weft import _core
_core.observe(0, {_core.node_pid()}, 0, 0, 10.0)["node"]["daemon_pid"]
os.setgid(65534); os.setuid(65534)
try:
    print(_core.observe(0, {_core.node_pid()}, 0, 0, 10.0))
except ValueError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "the node daemon" in result.stdout and "{" not in result.stdout, result.stderr


def test_an_impostor_is_recognised(own):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    # Somebody else listens under the name of a daemon of ours that does not exist.
    program = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
s.bind("\\0weft-session-0-4194300"); s.listen(1)
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as impostor:
        assert impostor.stdout.readline() == b"ready\n"
        with pytest.raises(ValueError, match="another user"):
            _core.observe(0, 4194300, 0, 0, 1.0)
        impostor.stdin.close()


# ---- weft explain ---------------------------------------------------------------------------------------------------


@weft.remote
def after(value):
    return value


@weft.remote
def waits_for(refs):
    return weft.get(refs[0])


def test_explain_a_reference(own, gate):
    first = waits_here.remote(gate.path)
    last = after.remote(first)
    wait_until(lambda: " runs (pid " in weft.explain(first))
    assert weft_command("explain", first.hex(), *own).stdout.rstrip("\n") == weft.explain(first)
    assert weft_command("explain", last.hex(), *own).stdout.rstrip("\n") == weft.explain(last)
    answer = json.loads(weft_command("explain", last.hex(), "--json", *own).stdout)
    assert (answer["id"], answer["kind"], answer["stuck"]) == (last.hex(), "task", False)
    assert answer["text"] == weft.explain(last)
    value = weft.put(7)
    assert weft_command("explain", value.hex().upper(), *own).stdout == f"object {value.hex()} is there\n"
    gate.open()
    weft.get(last)


def test_explain_the_beginning_of_an_id(own, gate):
    refs = [waits_here.remote(gate.path) for _ in range(3)]
    wait_until(lambda: " runs (pid " in weft.explain(refs[0]))
    ids = [ref.hex() for ref in refs]
    shared = len(os.path.commonprefix(ids))
    ambiguous = weft_command("explain", ids[0][:shared], *own, check=False)
    assert ambiguous.returncode == 2 and "ids begin with" in ambiguous.stderr
    assert all(identity in ambiguous.stderr for identity in ids) and "waits_here" in ambiguous.stderr
    # A beginning that only one has: such ids differ in their last digits only, so the others are freed first.
    del refs[1:]
    gate.open()
    weft.get(refs[0])
    kept = refs[0].hex()

    def only_one():
        rows = weft.state.list_objects() + weft.state.list_tasks() + weft.state.list_actors()
        found = {row.get("object_id") or row.get("task_id") or row.get("actor_id") for row in rows}
        return next((kept[:size] for size in range(1, 33) if sum(i.startswith(kept[:size]) for i in found) == 1), None)

    assert weft_command("explain", only_one(), *own).stdout.startswith("the result of task 'waits_here'") or (
        "is there" in weft_command("explain", only_one(), *own).stdout
    )


def test_explain_every_wait(own, gate):
    inner = waits_here.remote(gate.path)
    outer = waits_for.remote([inner])
    quiet = weft_command("explain", "--json", *own)
    assert isinstance(json.loads(quiet.stdout), list)

    def waits():
        return json.loads(weft_command("explain", "--json", *own).stdout)

    wait_until(lambda: len(waits()) == 1, 30, "the task has waited for a second")
    (wait,) = waits()
    assert (wait["task"], wait["type"], wait["stuck"]) == ("waits_for", "worker", False)
    assert wait["seconds"] >= 1.0 and f"(pid {wait['pid']}) has waited" in wait["text"]
    assert "'waits_here' runs" in wait["text"]
    # A driver that waits too is one more, and named; it has to be another program, since this one looks.
    text = weft_command("explain", *own).stdout
    assert text.startswith(f"worker pid={wait['pid']}: 'waits_for'")
    gate.open()
    weft.get(outer)
    wait_until(lambda: waits() == [], 30, "nobody waits")
    nobody = weft_command("explain", *own)
    assert nobody.stdout == "" and "no process has waited" in nobody.stderr


def test_explain_a_driver_that_waits(tmp_path, no_session):
    path = tmp_path / "gate"
    program = (
        "import os, time, weft\n"
        "@weft.remote\n"
        "def slow(path):\n"
        "    while not os.path.exists(path): time.sleep(0.02)\n"
        "weft.init(num_cpus=1)\n"
        f"weft.get(slow.remote({str(path)!r}))\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", program])
    try:

        def waits():
            seen = weft_command("explain", "--json", "--session", str(driver.pid), check=False)
            return json.loads(seen.stdout) if seen.returncode == 0 else []

        wait_until(lambda: len(waits()) == 1, 30, "the driver has waited for a second")
        (wait,) = waits()
        assert (wait["type"], wait["pid"], wait["task"]) == ("driver", driver.pid, "")
        assert wait["text"].startswith(f"a thread of pid {driver.pid} has waited")
        assert "the result of task 'slow' runs" in wait["text"]
        path.touch()
        assert driver.wait(30) == 0
    finally:
        driver.kill()
        driver.wait()


def test_explain_an_actor(own, gate):
    @weft.remote
    class Waiter:
        def wait(self, refs):
            return weft.get(refs[0])

    waiter = Waiter.remote()
    ref = waiter.wait.remote([waits_here.remote(gate.path)])
    (row,) = weft.state.list_actors()

    def text():
        return weft_command("explain", row["actor_id"], *own).stdout

    wait_until(lambda: "'waits_here' runs" in text(), 30, "its call waits")
    assert text().startswith("actor 'Waiter' is ALIVE, pid ") and "'Waiter.wait' (pid" in text()
    gate.open()
    weft.get(ref)


def test_explain_mistakes(own):
    for wrong in (["xyz"], ["1" * 33], [""], ["1", "2"], ["--what"]):
        result = weft_command("explain", *wrong, *own, check=False)
        assert result.returncode == 2 and "usage: weft explain" in result.stderr, wrong
    for absent in ("f" * 32, "f" * 10, f"{1:016x}{2**40:016x}"):
        result = weft_command("explain", absent, *own, check=False)
        assert result.returncode == 1 and absent in result.stderr and result.stdout == "", absent
    gone = weft_command("explain", "--session", "1", check=False)
    assert gone.returncode == 1 and "no session of yours" in gone.stderr
    assert weft_command("explain", "--help").stdout.startswith("usage: weft explain")


def test_observers_cannot_change_anything_by_routing(own, gate):
    """Only questions are passed on to processes; anything else ends the connection and nothing happens."""
    import struct

    def message(kind, body):
        return struct.pack("<IBB", len(body) + 2, kind, 0) + body

    messages = (Path(__file__).parents[2] / "src/wire/messages.h").read_text()
    version = int(re.search(r"kProtocolVersion = (\d+);", messages)[1])
    ref = waits_here.remote(gate.path)
    owner, index = struct.unpack(">QQ", ref.binary())
    cancel = struct.pack("<BQQQ", 5, owner, index, 0)
    ask = struct.pack("<BQQQI", 7, owner, index, 1, 0)
    for payload, answered in ((ask, True), (cancel, False), (ask + cancel, False), (b"", False), (b"\x07no", False)):
        with connect() as observer:
            observer.sendall(message(38, struct.pack("<III", version, 0, 0)))
            observer.sendall(message(10, struct.pack("<QI", owner, len(payload)) + payload))
            received = b""
            while not (answered and b"waits_here" in received):
                more = observer.recv(65536)
                if not more:
                    break
                received += more
            assert (b"waits_here" in received) == answered
    # And nothing at all before the version of the protocol is known.
    with connect() as observer:
        observer.sendall(message(10, struct.pack("<QI", owner, len(ask)) + ask))
        assert observer.recv(1) == b"", "the daemon closes it"
    gate.open()
    assert weft.get(ref, timeout=30) is None


def test_options_of_weft_start_that_messages_and_documents_name_exist():
    root = Path(__file__).parent.parent.parent
    known = set(re.findall(r"--[a-z-]+", weft_command("start", "--help").stdout))
    assert "--head" in known
    files = [*root.glob("src/**/*.cc"), *root.glob("python/**/*.py"), *root.glob("docs/**/*.md"), root / "README.md"]
    found = 0
    for file in files:
        for line in re.findall(r"weft start((?: +-[^ `\"\n]*)+)", file.read_text()):
            for option in re.findall(r" (--[a-z-]+)", line):
                found += 1
                assert option in known or option == "--help", f"{option} in {file}"
    assert found > 20
