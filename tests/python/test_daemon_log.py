"""The logs of node daemons: files of `weft start` and of sessions that ask for one, and `weft logs --daemon`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from helpers import Driver, run_driver
from test_cluster import SECONDS, Nodes, gone, until

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warning|error) (\S+) (\d+) ([a-z]+): (.*)")
ONE_TASK = """
    @weft.remote
    def pid():
        import os
        return os.getpid()

    print(weft.get(pid.remote()))
"""


class Logged(Nodes):
    def __init__(self, home) -> None:
        super().__init__(home)
        self.environment.pop("WEFT_LOG_LEVEL", None)

    def file(self, pid: int):
        return self.home / "weft" / f"node-{pid}.log"

    def lines(self, pid: int) -> list:
        """(level, node, subject, text) of each line; all lines are well formed and of this daemon."""
        found = []
        for line in self.file(pid).read_text().splitlines():
            match = LINE.fullmatch(line)
            assert match, line
            assert int(match[3]) == pid
            found.append((match[1], match[2], match[4], match[5]))
        return found

    def says(self, pid: int, subject: str, text: str) -> bool:
        return any(line[2] == subject and re.search(text, line[3]) for line in self.lines(pid))

    def shown(self, *arguments, check=True) -> subprocess.CompletedProcess:
        return self.run("logs", "--daemon", *arguments, check=check)


@pytest.fixture
def nodes(tmp_path):
    made = Logged(tmp_path)
    yield made
    made.end()


def test_what_the_operator_of_a_cluster_needs(nodes):
    head = nodes.start("--num-cpus=1", "--name=the-head", "--labels=rack=7")
    node = nodes.start("--num-cpus=1", "--name=other")
    worker = int(nodes.output_of(ONE_TASK))
    until(lambda: nodes.says(head, "job", "has ended"))
    lines = nodes.lines(head)
    assert lines[0][:3] == ("info", "the-head", "node")
    assert re.fullmatch(r"weft \S+ starts as the head at 127.0.0.1:0, with 1 CPU, rack=7", lines[0][3])
    assert nodes.says(head, "link", f"^listens at {nodes.address}$")
    assert nodes.says(head, "store", "^this head leads cluster [0-9a-f]+ in epoch 1$")
    assert nodes.says(head, "membership", "^joined the cluster of .* as node 1$")
    assert nodes.says(head, "membership", r"^node 2 \(other\) at 127.0.0.1:\d+ is in the cluster$")
    assert nodes.says(head, "job", r"begins: driver with pid \d+ in /")
    workers = [pid for pid in (head, node) if nodes.says(pid, "worker", f"is ready, with pid {worker}$")]
    assert len(workers) == 1
    until(lambda: nodes.says(workers[0], "worker", f"with pid {worker} (exited|killed)"))
    assert lines[-1][1] == "1:the-head"
    assert nodes.says(node, "membership", f"^joined the cluster of {nodes.address} as node 2$")

    os.kill(node, signal.SIGKILL)
    until(lambda: nodes.says(head, "membership", r"^node 2 \(other\) is no longer in the cluster: "))
    assert ("warning", "membership") in [(line[0], line[2]) for line in nodes.lines(head)]
    os.kill(head, signal.SIGTERM)
    until(lambda: gone(head))
    assert nodes.says(head, "node", "^SIGTERM: it ends$")
    assert nodes.lines(head)[-1][3] == "has ended all that ran here, and ends with code 0"


def test_files_are_for_their_owner_alone(nodes):
    pid = nodes.start("--num-cpus=1")
    assert nodes.file(pid).stat().st_mode & 0o777 == 0o600
    assert nodes.file(pid).parent.stat().st_mode & 0o777 == 0o700


def test_the_level(nodes):
    pid = nodes.start("--num-cpus=1", "--log-level=error")
    assert nodes.output_of(ONE_TASK)
    assert [line[3].partition(" starts")[2] != "" for line in nodes.lines(pid)] == [True], (
        "the first line is always there"
    )
    nodes.run("stop", f"--address={nodes.address}")
    nodes.address, nodes.environment["WEFT_LOG_LEVEL"] = "", "error"
    pid = nodes.start("--num-cpus=1")
    assert len(nodes.lines(pid)) == 1
    other = nodes.start("--num-cpus=1", "--name=other", "--log-level=info")
    assert len(nodes.lines(other)) > 1, "an option is more than the environment"
    for options in ({}, {"WEFT_LOG_LEVEL": "loud"}):
        done = nodes.run("start", "--head", *([] if options else ["--log-level=loud"]), check=False, **options)
        assert done.returncode == 2
        assert "is debug, info, warning or error, not 'loud'" in done.stderr


def test_rotation_keeps_it_within_bounds_and_loses_nothing_that_is_kept(nodes):
    pid = nodes.start("--num-cpus=1", "--log-size=8192")

    def parts() -> list:
        return sorted(nodes.file(pid).parent.glob(f"node-{pid}.log*"))

    program = """
        import os

        @weft.remote
        class Counter:
            def pid(self):
                return os.getpid()

        for _ in range(12):
            weft.get(Counter.remote().pid.remote())
    """
    for _ in range(40):
        if len(parts()) == 4:
            break
        nodes.output_of(program)
    assert [part.name for part in parts()] == [f"node-{pid}.log", *(f"node-{pid}.log.{i}" for i in (1, 2, 3))]
    assert all(part.stat().st_size <= 8192 and part.stat().st_mode & 0o777 == 0o600 for part in parts())
    shown = nodes.shown().stdout.splitlines()
    assert shown == [line for part in reversed(parts()) for line in part.read_text().splitlines()]
    times = [line.split()[0] for line in shown]
    assert times == sorted(times)
    done = nodes.run("start", "--head", "--log-size=10", check=False)
    assert done.returncode == 2 and "--log-size takes" in done.stderr


def test_a_log_that_was_removed_comes_back(nodes):
    pid = nodes.start("--num-cpus=1")
    nodes.file(pid).unlink()
    nodes.output_of(ONE_TASK)
    until(lambda: nodes.says(pid, "log", "was removed or moved and has been made again"))
    nodes.file(pid).unlink()
    nodes.file(pid).parent.rmdir()
    nodes.output_of(ONE_TASK)
    until(lambda: nodes.file(pid).exists() and nodes.says(pid, "job", "has ended"))
    assert nodes.file(pid).parent.stat().st_mode & 0o777 == 0o700
    assert nodes.output_of(ONE_TASK)


@pytest.fixture
def small_disk(nodes):
    """A folder for logs on a disk of its own, which can be filled, or made read-only."""
    folder = nodes.home / "weft"
    folder.mkdir(mode=0o700)
    script = f"mount -t tmpfs -o size=64k,mode=700 none {folder} && echo && exec sh"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        if shell.stdout.readline() != "\n":
            pytest.skip("no mount namespaces for this user")

        def run(command: str) -> str:
            shell.stdin.write(command + "\necho end\n")
            shell.stdin.flush()
            return "".join(iter(shell.stdout.readline, "end\n"))

        yield run
        shell.kill()


WEFT = os.path.join(os.path.dirname(sys.executable), "weft")


MANY_LINES = """
    @weft.remote
    class Idle:
        def rest(self):
            pass

    for _ in range(40):
        weft.get(Idle.remote().rest.remote())
    print("done")
"""
MISSING = r"\d+ lines are missing here: cannot .*(No space left on device|Read-only file system)"


def start_with_log_there(nodes, shell) -> tuple:
    for name in ("HOME", "XDG_RUNTIME_DIR"):
        shell(f"export {name}='{nodes.environment[name]}'")
    shell("unset WEFT_LOG_LEVEL")
    said = shell(f"{WEFT} start --head --port=0 --num-cpus=1 2>&1")
    nodes.address = re.search(r"the head of the cluster (\S+)", said)[1]
    (pid,) = nodes.sockets()
    nodes.pids.append(pid)
    return pid, said


def expect_missing_lines_once(nodes, shell, pid: int) -> None:
    log = nodes.home / "weft" / f"node-{pid}.log"
    until(lambda: re.search(MISSING, shell(f"cat {log}")))
    text = shell(f"cat {log}")
    assert len(re.findall(MISSING, text)) == 1
    assert all(LINE.fullmatch(line) for line in text.splitlines()), "a line is whole or not there"


def test_a_disk_that_fills_up_stops_nobody(nodes, small_disk):
    pid, said = start_with_log_there(nodes, small_disk)
    assert "not written" not in said
    ballast = nodes.home / "weft" / "ballast"
    small_disk(f"head -c 1m /dev/zero > {ballast} 2>/dev/null")
    assert nodes.output_of(MANY_LINES) == "done\n"
    assert not gone(pid)
    small_disk(f"rm {ballast}")
    assert nodes.output_of(MANY_LINES) == "done\n"
    expect_missing_lines_once(nodes, small_disk, pid)


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_weft_start_says_that_the_log_cannot_be_written(nodes, small_disk, how):
    folder = nodes.home / "weft"
    breaks, mends = {
        "full": (f"head -c 1m /dev/zero > {folder}/ballast 2>/dev/null", f"rm {folder}/ballast"),
        "read-only": (f"mount -o remount,ro {folder}", f"mount -o remount,rw {folder}"),
    }[how]
    small_disk(breaks)
    pid, said = start_with_log_there(nodes, small_disk)
    assert len(re.findall("the node's log is not written, and it goes on without: cannot ", said)) == 1, said
    assert nodes.output_of(ONE_TASK)
    small_disk(mends)
    assert nodes.output_of(ONE_TASK)
    expect_missing_lines_once(nodes, small_disk, pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user(nodes):
    """Without one of the user's own, logs go to /tmp, where anybody may have made the folder before."""
    folder = nodes.home / "weft"
    folder.mkdir(mode=0o700)
    secret = nodes.home / "secret"
    secret.write_text("precious\n")
    for make, why in (
        (lambda: folder.chmod(0o777), "so others can get in"),
        (lambda: os.chown(folder, 65534, 65534), "belongs to user 65534"),
    ):
        folder.chmod(0o700)
        (folder / "node-1.log").touch()
        make()
        done = nodes.run("start", "--head", "--port=0", check=False)
        assert done.returncode == 1 and why in done.stderr
        shown = nodes.shown("--session", "1", check=False)
        assert shown.returncode == 1 and "has the node daemon or driver 1" in shown.stderr
    os.chown(folder, os.geteuid(), os.getegid())
    (folder / "node-1.log").unlink()
    (folder / "node-1.log").symlink_to(secret)
    shown = nodes.shown("--session", "1", check=False)
    assert shown.returncode == 1 and "precious" not in shown.stdout


def test_shown_while_it_runs_and_after_it_was_killed(nodes):
    head = nodes.start("--num-cpus=1", "--name=head")
    shown = nodes.shown()
    assert shown.stdout == nodes.file(head).read_text()
    assert shown.stderr == f"weft: {nodes.file(head)}, of the node daemon {head}\n"
    other = nodes.start("--num-cpus=1", "--name=other")
    shown = nodes.shown()
    assert f"this is the log of the latest daemon, {other} (others: {head})" in shown.stderr
    assert " as node 2\n" in shown.stdout
    assert " as node 1\n" in nodes.shown(f"--session={head}").stdout
    for pid in (other, head):
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: gone(pid))
    shown = nodes.shown(f"--session={head}")
    assert " as node 1\n" in shown.stdout
    assert f"of the node daemon {head}, which has ended" in shown.stderr
    assert nodes.shown().stdout
    for arguments in (["--session=1"], ["--session=no"], ["4711"]):
        assert nodes.shown(*arguments, check=False).returncode in (1, 2)


def test_control_characters_never_reach_the_terminal(nodes):
    pid = nodes.start("--num-cpus=1", "--name=evil\u202e\u009b2J\\n")
    name = r"evil\xe2\x80\xae\xc2\x9b2J\\n"
    assert {line[1] for line in nodes.lines(pid)} == {name, f"1:{name}"}
    # What others write into the file, such as a sanitizer.
    with open(nodes.file(pid), "a") as file:
        file.write("raw \x1b[31m\n")
    assert nodes.shown().stdout.endswith("raw \\x1b[31m\n")


def test_in_the_foreground_warnings_come_to_the_terminal_too(nodes):
    command = [WEFT, "start", "--head", "--block", "--port=0", "--num-cpus=1", "--json"]
    with subprocess.Popen(
        command, env=nodes.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = process.stdout.readline()
        nodes.address, pid = re.search(r'"address": "([^"]+)", "pid": (\d+)', said).groups()
        nodes.pids.append(int(pid))
        other = nodes.start("--num-cpus=1", "--name=other")
        os.kill(other, signal.SIGKILL)
        until(lambda: nodes.says(int(pid), "membership", "is no longer in the cluster"))
        os.kill(int(pid), signal.SIGTERM)
        _, told = process.communicate(timeout=SECONDS)
    assert re.fullmatch(r"weft node: node 2 \(other\) is no longer in the cluster: [^\n]+\n", told), told
    assert nodes.lines(int(pid))[-1][3].startswith("has ended")


SESSION = """
    import os, sys, weft
    weft.init(num_cpus=1)

    @weft.remote
    def f():
        return os.getpid()

    print(weft.get(f.remote()), flush=True)
    print(weft._core.node_pid(), flush=True)
    sys.stdin.readline()
"""


def private(tmp_path, **environment) -> Driver:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "WEFT_LOG_LEVEL": None, **environment}
    return Driver(SESSION, env=environment, stdin=subprocess.PIPE)


def test_a_private_session_keeps_no_log_unless_asked(nodes, tmp_path):
    driver = private(tmp_path)
    driver.process.stdout.readline()
    daemon = int(driver.process.stdout.readline())
    done = nodes.shown(f"--session={daemon}", check=False)
    assert done.returncode == 1 and f"the node daemon {daemon} keeps no log" in done.stderr
    assert "WEFT_LOG_LEVEL" in done.stderr
    driver.process.stdin.close()
    driver.process.stdin = None
    assert driver.finish() == 0
    assert driver.stderr == ""
    assert not (tmp_path / "weft").exists(), "nothing outlives the driver"


def test_a_private_session_keeps_a_log_if_asked(nodes, tmp_path):
    driver = private(tmp_path, WEFT_LOG_LEVEL="info")
    worker = int(driver.process.stdout.readline())
    daemon = int(driver.process.stdout.readline())
    for session in (daemon, driver.pid):
        assert f"is ready, with pid {worker}" in nodes.shown(f"--session={session}").stdout
    driver.process.kill()
    driver.finish()
    driver.expect_nothing_left()
    shown = nodes.shown()
    assert "which has ended" in shown.stderr
    assert f" - {daemon} " not in shown.stdout and f" private {daemon} node: weft " in shown.stdout
    assert shown.stdout.endswith("ends with code 0\n")
    assert driver.stderr == ""


def test_a_level_that_does_not_exist_does_not_stop_a_session(nodes, tmp_path):
    driver = private(tmp_path, WEFT_LOG_LEVEL="loud")
    driver.process.stdin.close()
    driver.process.stdin = None
    assert driver.finish() == 0
    assert "WEFT_LOG_LEVEL is debug, info, warning or error, not 'loud'; it is info now" in driver.stderr


def test_a_session_with_a_strangers_folder_works_without_a_log(tmp_path):
    (tmp_path / "weft").symlink_to("/")
    run = run_driver(
        "import weft; weft.init(num_cpus=1); print(weft.get(weft.put(1)))",
        env={"XDG_RUNTIME_DIR": str(tmp_path), "WEFT_LOG_LEVEL": "debug"},
    )
    assert run.stdout == "1\n"
    assert "is a symlink or a file, where weft needs a directory of its own" in run.stderr
    assert run.stderr.count("\n") == 1


def test_nobody_reads_what_the_daemon_says(tmp_path):
    """A terminal that is stopped, a pipe that is full: the daemon does not wait for either."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "WEFT_LOG_LEVEL": "loud"}  # a warning, first of all
    program = "import weft; weft.init(num_cpus=1); print(weft.get(weft.put(2)), flush=True); weft.shutdown()"
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    watch = threading.Timer(SECONDS, process.kill)
    watch.start()
    assert process.stdout.read() == b"2\n"
    assert process.wait() == 0
    watch.cancel()
    os.close(reader)
