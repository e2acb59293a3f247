"""C++ libraries that Python programs use, on nodes that do not have them: sent, kept, checked, or refused clearly.

As in test_cluster_programs.py, nodes other than `here` are in mount namespaces of their own, where the library's folder
is empty or holds what a test puts there, and each has a home of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers import wait_until
from test_cluster_programs import BUILT, SECONDS, Machines, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is possible")

PRELUDE = """
import json, os, sys, time
import weft, weft.cpp
from weft.exceptions import *

address, library = sys.argv[1:3]
weft.init(address=address)
tasks = weft.cpp.library(library)

def on(where):
    return {"num_cpus": 0, "resources": {where: 0.1}}

there, here, third = on("there"), on("here"), on("third")

def get(reference):
    return weft.get(reference, timeout=40)

def own(files):
    return [name for name in files if not name.startswith(("/usr/", "/lib")) and "/.venv/" not in name]

def say(**what):
    print(json.dumps(what), flush=True)
"""


class Libraries(Machines):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.library = self.program / "libfreight.so"
        self.needed = self.program / "needed" / "libweft_test_luggage.so"
        self.needed.parent.mkdir()
        shutil.copy(BUILT / "libweft_test_freight_1.so", self.library)
        shutil.move(str(self.program / "libweft_test_luggage.so"), self.needed)
        for name in self.program.glob("libweft*"):
            name.unlink()
        self.programs: list = []

    def python(self, source: str, where: str = "here") -> subprocess.Popen:
        """A driver on that node; what it prints are lines of JSON."""
        environment = {
            **os.environ,
            "HOME": str(self.homes[where]),
            "LD_LIBRARY_PATH": str(self.needed.parent),
            "WEFT_NODE": str(self.pids[where]),
        }
        program = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(source), self.address, str(self.library)],
            env=environment,
            cwd=self.program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.programs.append(program)
        return program

    def say(self, source: str, where: str = "here") -> dict:
        """What such a driver says last."""
        program = self.python(source, where)
        out, err = program.communicate(timeout=SECONDS + 30)
        assert program.returncode == 0, out + err
        return json.loads(out.splitlines()[-1])

    def incoming(self, where: str = "there") -> list:
        folder = self.cache_of(where)
        return list(folder.glob("incoming-*")) if folder.exists() else []

    def await_pieces(self) -> None:
        """Until a file has come in part."""

        def any_there() -> bool:
            try:
                return any(path.stat().st_size > 0 for path in self.incoming())
            except FileNotFoundError:  # it has come
                return False

        wait_until(any_there, SECONDS, "pieces come")

    def pad(self, megabytes: int) -> None:
        """Makes the library larger, without making it another one."""
        os.truncate(self.library, megabytes << 20)

    def close(self) -> None:
        for program in self.programs:
            program.kill()
            program.communicate()
        super().close()


@pytest.fixture
def machines(tmp_path):
    made = Libraries(tmp_path)
    made.start("here")
    yield made
    made.close()


def listen_for(program: subprocess.Popen) -> dict:
    line = program.stdout.readline()
    assert line, program.communicate(timeout=SECONDS)[1]
    return json.loads(line)


def go(program: subprocess.Popen) -> None:
    program.stdin.write("go\n")
    program.stdin.flush()


USE = """
porter = tasks.Porter.options(**there).remote(2)
say(
    weight=get(tasks.weight.options(**there).remote(2)),
    version=get(tasks.version.options(**there).remote()),
    files=own(get(tasks.files.options(**there).remote())),
    carried=get(porter.take.remote(1)),
    carried_weight=get(porter.weight.remote()),
    by_reference=get(porter.weigh_ref.remote(weft.put(4))),
    actor_files=own(get(porter.files.remote())),
)
"""


def assert_used(said: dict) -> None:
    assert (said["weight"], said["version"], said["carried"], said["carried_weight"]) == (46, 1, 3, 69), said
    assert said["by_reference"] == 92


def test_what_is_not_there_is_sent_once(machines):
    machines.start("there")
    said = machines.say(USE)
    assert_used(said)
    copies = machines.copies()
    # The library, and the one that it needs; not libweft.so, which every worker has.
    assert len(copies) == 2, copies
    for used in (said["files"], said["actor_files"]):
        mapped = {
            name for name in used if "freight" in name or "luggage" in name or name.startswith(str(machines.cache))
        }
        assert mapped == {f"{machines.cache}/{name}" for name in copies}, used
    assert machines.cache.stat().st_mode & 0o777 == 0o700
    # Another program, and another build of the daemon's life: nothing is sent again.
    assert_used(machines.say(USE))
    assert machines.copies() == copies


def test_what_is_there_is_used(machines):
    shutil.copytree(machines.program, machines.other, dirs_exist_ok=True)
    machines.start("there")
    said = machines.say(USE)
    assert_used(said)
    assert {str(machines.library), str(machines.needed)} <= set(said["files"])
    assert not machines.cache.exists()


def test_another_build_at_the_same_path_is_not_used(machines):
    shutil.copy(BUILT / "libweft_test_freight_2.so", machines.other / "libfreight.so")
    machines.start("there")
    assert_used(machines.say(USE))
    assert len(machines.copies()) == 2


def test_libraries_functions_and_handles_travel(machines):
    machines.start("there")
    said = machines.say(
        """
        @weft.remote
        def uses(library, function, cls, handle, path):
            made = cls.options(**there).remote(5)
            return (
                weft.get(library.weight.remote(1)),
                weft.get(function.options(**here).remote(2)),
                weft.get(made.weight.remote()),
                weft.get(handle.take.remote(1)),
                weft.cpp.library(path) is library,
                weft.get(library.forwarded.options(**there).remote(3, "here")),
                weft.get(library.forwarded.options(**here).remote(3, "there")),
            )

        @weft.remote
        def holds(handle):
            before = own_files()
            weft.get(handle.take.remote(1))
            return before == own_files()

        def own_files():
            return sorted({line.split()[-1] for line in open("/proc/self/maps") if ".weft/programs" in line})

        porter = tasks.Porter.options(**here).remote(2)
        # A process that only calls an actor needs no library.
        say(
            unneeded=get(holds.options(**there).remote(porter)),
            seen=get(uses.options(**there).remote(tasks, tasks.weight, tasks.Porter, porter, library)),
            found=get(uses.options(**here).remote(tasks, tasks.weight, tasks.Porter, porter, library)),
        )
        """
    )
    assert said["unneeded"] is True
    assert said["seen"] == [23, 46, 115, 4, True, 69, 69], said
    assert said["found"] == [23, 46, 115, 5, True, 69, 69], said


def test_a_third_node_gets_it_from_who_submits(machines):
    machines.start("there")
    machines.start("third")
    said = machines.say(
        """
        assert get(tasks.weight.options(**there).remote(1)) == 23
        say(weight=get(tasks.forwarded.options(**there).remote(2, "third")))
        """
    )
    assert said["weight"] == 46
    assert machines.copies("third").keys() == machines.copies("there").keys()


def test_a_library_that_only_a_worker_has_loaded(machines):
    """It lies on the worker's node, and the driver knows nothing of it."""
    shutil.copy(BUILT / "libweft_test_freight_2.so", machines.other / "libother.so")
    shutil.copytree(machines.needed.parent, machines.other / "needed")
    machines.start("third")
    shutil.rmtree(machines.other / "needed")
    (machines.other / "libother.so").unlink()
    machines.start("there")
    said = machines.say(
        """
        @weft.remote
        def forwards(path):
            library = weft.cpp.library(path)
            porter = library.Porter.options(**there).remote(3)
            return weft.get([library.version.options(**there).remote(), porter.weight.remote()])

        path = os.path.join(os.path.dirname(library), "libother.so")
        say(seen=get(forwards.options(**third).remote(path)), own=get(tasks.version.options(**there).remote()))
        """
    )
    assert said == {"seen": [2, 69], "own": 1}
    assert len(machines.copies()) == 3  # two builds of the library, and what both need


def test_a_library_is_used_in_a_later_session(machines):
    machines.start("there")
    said = machines.say(
        """
        weft.shutdown()
        weft.init(address=address)  # the library is loaded before
        say(weight=get(tasks.weight.options(**there).remote(2)))
        """
    )
    assert said["weight"] == 46


def test_many_workers_ask_at_once(machines):
    machines.pad(48)
    machines.cpus["there"] = 6
    machines.start("there")
    program = machines.python(
        """
        actors = [tasks.Porter.options(num_cpus=1, resources={"there": 0.1}).remote(n) for n in range(6)]
        say(weights=[get(actor.weight.remote()) for actor in actors])
        """
    )
    most = 0
    while program.poll() is None and not machines.cache.exists():
        pass
    while program.poll() is None:
        most = max(most, len(machines.incoming()))
    out, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 0, err
    assert json.loads(out)["weights"] == [23 * n for n in range(6)]
    assert most <= 1
    assert len(machines.copies()) == 2


def test_a_damaged_copy_is_not_used(machines):
    machines.start("there")
    assert_used(machines.say(USE))
    before = machines.copies()
    for name in before:
        path = machines.cache / name
        # Not in place: a worker of the first run may still have it mapped.
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()
        path.write_bytes(content)
    assert_used(machines.say(USE))
    assert machines.log("there").count("is damaged and removed") == 2
    after = machines.copies()
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in after)


REBUILT = """
say(ready=True)
sys.stdin.readline()
seen = {}
for name, where in (("there", there), ("here", here)):
    try:
        get(tasks.weight.options(**where).remote(1))
    except WeftError as error:
        seen[name] = (type(error).__name__, str(error))
    try:
        get(tasks.Porter.options(**where).remote(1).weight.remote())
    except WeftError as error:
        seen[name + " actor"] = (type(error).__name__, f"{error} {error.__cause__!r}")
say(**seen)
"""


def test_a_library_that_was_built_anew_is_a_mismatch(machines):
    machines.start("there")
    program = machines.python(REBUILT)
    assert listen_for(program)["ready"]
    shutil.copy(BUILT / "libweft_test_freight_2.so", machines.program / "new")
    os.rename(machines.program / "new", machines.library)
    go(program)
    said = listen_for(program)
    kind, text = said["there"]
    assert kind == "VersionMismatchError", text
    assert "cannot be used on node 2 (there)" in text and "was replaced since it was loaded" in text, text
    kind, text = said["here"]
    assert kind == "VersionMismatchError", text
    assert str(machines.library) in text
    for name in ("there actor", "here actor"):
        kind, text = said[name]
        assert kind == "ActorDiedError" and str(machines.library) in text, text


def test_what_is_too_large_is_told(machines):
    machines.pad(1100)
    machines.start("there")
    said = machines.say(
        """
        try:
            get(tasks.weight.options(**there).remote(1))
        except RuntimeEnvSetupError as error:
            say(error=str(error), here=get(tasks.weight.options(**here).remote(1)))
        """
    )
    assert "is too large to be sent (at most 1074 MB)" in said["error"], said
    assert str(machines.library) in said["error"] and "node 2 (there)" in said["error"]
    assert said["here"] == 23


def test_a_foreign_machine_or_libc_is_refused(machines):
    """The list of files says what they need; here it is changed, since this machine can load no foreign library."""
    machines.start("there")
    refused = """
        import struct

        def changed(at, layout, value):
            body = tasks._body
            begin = body.index(b"\\0", body.index(b"/")) + 1 + 4 + at
            return body[:begin] + struct.pack(layout, value) + body[begin + struct.calcsize(layout):]

        item = next(item for item in tasks._exports if item["name"] == "weight")
        function = weft.cpp.Function(tasks, item, changed(%s))
        try:
            say(weight=get(function.options(**there).remote(1)))
        except RuntimeEnvSetupError as error:
            say(error=str(error))
        """
    said = machines.say(refused % "2, '<H', 183")["error"]
    assert f"{machines.library} is for AArch64 (64 bit), and this machine is x86-64 (64 bit)" in said, said
    said = machines.say(refused % "5, '<I', 9 << 16 | 99")["error"]
    assert f"{machines.library} needs glibc 9.99, and this machine has " in said, said
    assert not machines.cache.exists()


def test_a_full_disk_is_told(machines):
    daemon = machines.start("there")
    subprocess.run(
        ["nsenter", f"--mount=/proc/{daemon.pid}/ns/mnt", "mount", "-t", "tmpfs", "-o", "size=64k", "none"]
        + [str(machines.homes["there"])],
        check=True,
    )
    said = machines.say(
        """
        try:
            get(tasks.weight.options(**there).remote(1))
        except RuntimeEnvSetupError as error:
            say(error=str(error))
        """
    )
    assert "is not there, and a copy cannot be kept: " in said["error"] and "has no room for it" in said["error"], said


def test_another_node_sends_it_when_one_is_killed(machines):
    machines.pad(64)
    machines.start("there")
    machines.start("third")
    program = machines.python(
        """
        assert get(tasks.weight.options(**third).remote(1)) == 23
        say(ready=True)
        lost = tasks.forwarded.options(max_retries=0, **third).remote(2, "there")
        sys.stdin.readline()
        weight = get(tasks.weight.options(**there).remote(3))
        try:
            get(lost)
            say(weight=weight)
        except WeftError as error:
            say(weight=weight, error=type(error).__name__)
        """
    )
    assert listen_for(program)["ready"]
    # The submitter's node is asked first: it ends in the middle of it.
    machines.await_pieces()
    os.kill(machines.pids["third"], signal.SIGSTOP)
    assert machines.incoming(), "it was still on its way"
    os.kill(machines.pids["third"], signal.SIGKILL)
    go(program)
    said = listen_for(program)
    assert said == {"weight": 69, "error": said.get("error")} and said["error"] in (
        "WorkerCrashedError",
        "NodeDiedError",
    ), said
    assert not machines.incoming()
    assert len(machines.copies()) == 2


def test_a_worker_that_waits_for_it_is_killed(machines):
    machines.pad(64)
    machines.start("there")
    program = machines.python(
        """
        @weft.remote
        def pid():
            return os.getpid()

        weight = tasks.weight.options(**there)
        first = get(pid.options(**there).remote())
        say(pid=first)
        say(weight=get(weight.remote(2)))
        """
    )
    pid = listen_for(program)["pid"]
    machines.await_pieces()
    os.kill(pid, signal.SIGKILL)
    assert listen_for(program)["weight"] == 46  # retried
    assert not machines.incoming()
    assert len(machines.copies()) == 2


def test_a_driver_that_goes_meanwhile_does_no_harm(machines):
    machines.pad(64)
    daemon = machines.start("there")
    for _ in range(3):
        program = machines.python("get(tasks.weight.options(**there).remote(1))")
        machines.await_pieces()
        program.kill()
        program.communicate(timeout=SECONDS)
        wait_until(lambda: not machines.incoming(), SECONDS, "nothing is half-written")
    assert_used(machines.say(USE))
    assert daemon.poll() is None


def test_the_drivers_node_dies_meanwhile(tmp_path):
    """The head is another node; what is half-written is removed, and all goes on."""
    machines = Libraries(tmp_path)
    machines.pad(64)
    shutil.copytree(machines.program, machines.other, dirs_exist_ok=True)
    try:
        machines.start("third")
        for path in machines.other.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        machines.start("here")
        there = machines.start("there")
        program = machines.python("get(tasks.weight.options(**there).remote(1))")
        machines.await_pieces()
        os.kill(machines.pids["here"], signal.SIGSTOP)
        assert machines.incoming(), "it was still on its way"
        os.kill(machines.pids["here"], signal.SIGKILL)
        assert program.wait(SECONDS) != 0
        wait_until(lambda: not machines.incoming(), SECONDS, "nothing is half-written")
        assert there.poll() is None
        machines.start("here")
        assert_used(machines.say(USE))
    finally:
        machines.close()


DETACHED = """
porter = tasks.Porter.options(name="porter", lifetime="detached", max_restarts=-1, **on("away")).remote(2)
say(pid=get(porter.pid.remote()))
"""
VISIT = """
porter = weft.get_actor("porter")
say(pid=get(porter.pid.remote()), weight=get(porter.weight.remote()))
"""


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="it has ended")


def test_a_detached_actor_lives_on_without_its_driver(machines):
    machines.more_options["there"] = machines.more_options["third"] = ["--resource=away=1"]
    machines.start("there")
    first = machines.say(DETACHED)["pid"]
    end(first)
    again = machines.say(VISIT)
    assert again["pid"] != first and again["weight"] == 46
    before = machines.copies()
    assert len(before) == 2
    # On a node that has never seen its driver: from the node that the driver was on.
    machines.start("third")
    end(machines.pids["there"])
    last = machines.say(VISIT)
    assert last["weight"] == 46
    assert machines.copies("third").keys() == before.keys()


def test_a_detached_actor_survives_a_restart_of_the_head(tmp_path):
    machines = Libraries(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        machines.port = probe.getsockname()[1]
    try:
        machines.start("here")
        address = machines.address
        machines.more_options["there"] = ["--resource=away=1"]
        machines.start("there")
        first = machines.say(DETACHED)["pid"]
        before = machines.copies()
        end(machines.pids["here"])
        machines.address = ""
        machines.start("here")
        machines.address = address
        assert machines.say(VISIT)["pid"] == first
        end(first)
        # Nobody shares it any more, and its file is gone: what the node has kept is enough.
        hidden = machines.library.with_suffix(".so.gone")
        machines.library.rename(hidden)
        machines.library = hidden
        again = machines.say(VISIT)
        assert again["pid"] != first and again["weight"] == 46
        assert machines.copies() == before
    finally:
        machines.close()
