"""C++ programs on nodes that do not have them: sent, kept, checked; and what cannot run there is refused.

The second node is in a mount namespace of its own, where the folders of the program and its libraries are empty, or
hold what a test puts there. Each node has a home of its own, hence a cache of programs.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest
from helpers import TAG, wait_until
from test_tls import Authority

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "build" / "release"
BUILT = RELEASE / "tests" / "cpp" / "travels"
WEFT = RELEASE / "bin" / "weft"
SECONDS = 40


def why_not() -> str:
    if not BUILT.is_dir() or not WEFT.exists():
        return "the C++ tests were not built (make test builds them)"
    if os.geteuid() != 0:
        return "mount namespaces need root"
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True
    )
    return f"no mount namespace: {done.stderr.strip()}" if done.returncode != 0 else ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is possible")


class Machines:
    """Nodes: `here`, where the driver runs, and others (`there`), which have other files."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "program"  # what the driver's node has, and the other has not
        self.other = folder / "other"  # what the other has in its place
        self.homes = {where: folder / f"home-{where}" for where in ("here", "there", "third")}
        for path in (self.program, self.other, *self.homes.values()):
            path.mkdir(mode=0o700)
        for name in (
            "weft_test_travels_1",
            "weft_test_caravan_host",
            "libweft_test_luggage.so",
            "libweft_test_caravan.so",
        ):
            shutil.copy(BUILT / name, self.program)
        for library in (RELEASE / "lib").glob("libweft.so*"):
            shutil.copy(library, self.program, follow_symlinks=False)
        os.rename(self.program / "weft_test_travels_1", self.driver)
        self.address = ""
        self.port = 0  # of the head
        self.cpus = dict.fromkeys(self.homes, 1)
        self.daemons: list = []
        self.pids: dict = {}
        self.more_options: dict = {where: [] for where in self.homes}

    @property
    def driver(self) -> Path:
        return self.program / "travels"

    @property
    def cache(self) -> Path:
        return self.cache_of("there")

    def cache_of(self, where: str) -> Path:
        return self.homes[where] / ".weft" / "programs"

    def copies(self, where: str = "there") -> dict:
        """What the second node was sent: name -> (inode, time of the last change)."""
        found = {path.name: path.stat() for path in self.cache_of(where).iterdir() if path.is_file()}
        return {name: (info.st_ino, info.st_mtime_ns) for name, info in found.items()}

    def log(self, where: str) -> str:
        return (self.homes[where] / "log").read_text()

    def start(self, where: str) -> subprocess.Popen:
        token = self.homes["here"].parent / "token"
        command = [str(WEFT), "start", "--block", "--json", f"--name={where}", f"--num-cpus={self.cpus[where]}"]
        command += [f"--token-file={token}", f"--resource={where}=1", *self.more_options[where]]
        command += [f"--address={self.address}"] if self.address else ["--head", f"--port={self.port}"]
        if where != "here":
            # The libraries as they were built must not be found there either.
            hidden = [self.program, BUILT, RELEASE / "lib"]
            script = "".join(f"mount -t tmpfs none {folder} && " for folder in hidden)
            script += f'cp -a {self.other}/. {self.program}/ && exec "$@"'
            command = ["unshare", "--mount", "--", "sh", "-c", script, "sh", *command]
        log = open(self.homes[where] / "log", "w")  # noqa: SIM115
        environment = {**os.environ, "HOME": str(self.homes[where])}
        environment.pop(TAG, None)
        daemon = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        self.daemons.append(daemon)
        said = daemon.stdout.readline()
        assert said, self.log(where)
        self.address = re.search(r'"address": "([^"]+)"', said)[1]
        self.pids[where] = int(re.search(r'"pid": (\d+)', said)[1])
        return daemon

    def environment(self) -> dict:
        return {
            **os.environ,
            "HOME": str(self.homes["here"]),
            "LD_LIBRARY_PATH": str(self.program),
            "WEFT_PROGRAM": str(WEFT),
        }

    def run(self, *more: str) -> str:
        done = subprocess.run(
            [str(self.driver), self.address, "there", *more],
            env=self.environment(),
            cwd=self.program,
            capture_output=True,
            text=True,
            timeout=SECONDS + 20,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            finally:
                daemon.kill()
                daemon.stdout.close()


@pytest.fixture
def machines(tmp_path):
    made = Machines(tmp_path)
    made.start("here")
    yield made
    made.close()


def files(said: str) -> list:
    """The files that a worker was made of, the executable first, without those of the system."""
    names = [name for name in re.findall(r"^file (.+)$", said, re.M) if not name.startswith(("/usr/", "/lib"))]
    # The order of the others is that of their addresses, which chance has a part in.
    return [*names[:1], *sorted(names[1:])]


def may_be_written(name: str) -> bool:
    try:
        os.close(os.open(name, os.O_WRONLY))
    except OSError as error:
        assert error.errno == errno.ETXTBSY, error
        return False
    return True


def test_what_is_not_there_is_sent_once(machines):
    machines.start("there")
    said = machines.run()
    assert "version 1 weight 46 " in said and "counted 69" in said, said
    used = files(said)
    # The executable, libweft.so and the library of the program's own.
    assert len(set(used)) == 3, used
    assert all(name.startswith(f"{machines.cache}/build-") for name in used), used
    assert machines.cache.stat().st_mode & 0o777 == 0o700
    before = machines.copies()
    assert len(before) == 3
    assert {f"{machines.cache}/{name}" for name in before} == set(used)
    assert files(machines.run()) == used
    assert machines.copies() == before


def test_what_is_not_there_is_sent_over_tls(tmp_path):
    authority = Authority(tmp_path / "authority")
    machines = Machines(tmp_path)
    machines.more_options = {where: authority.issue(where) for where in ("here", "there")}
    try:
        machines.start("here")
        machines.start("there")
        said = machines.run()
        assert "version 1 weight 46 " in said and "counted 69" in said, said
        assert {f"{machines.cache}/{name}" for name in machines.copies()} == set(files(said))
    finally:
        machines.close()


def test_what_is_there_is_used(machines):
    shutil.copytree(machines.program, machines.other, symlinks=True, dirs_exist_ok=True)
    machines.start("there")
    used = files(machines.run())
    assert used[0] == str(machines.driver)
    assert {os.path.dirname(name) for name in used} == {str(machines.program)}, used
    assert not machines.cache.exists()


def test_another_build_at_the_same_path_is_not_run(machines):
    shutil.copy(BUILT / "weft_test_travels_2", machines.other / "travels")
    machines.start("there")
    said = machines.run()
    assert "version 1 weight 46 " in said, said
    assert files(said)[0].startswith(str(machines.cache))


def test_another_build_that_comes_later_is_not_run(machines):
    shutil.copytree(machines.program, machines.other, symlinks=True, dirs_exist_ok=True)
    daemon = machines.start("there")
    assert files(machines.run())[0] == str(machines.driver)
    place = f"{daemon.pid}/root{machines.program}"
    # As an installer does it: under another name, then renamed.
    shutil.copy(BUILT / "weft_test_travels_2", f"/proc/{place}/new")
    os.rename(f"/proc/{place}/new", f"/proc/{place}/travels")
    said = machines.run()
    assert "version 1 weight 46 " in said, said
    assert files(said)[0].startswith(str(machines.cache))


def test_a_damaged_copy_is_not_run(machines):
    machines.start("there")
    used = files(machines.run())
    before = machines.copies()
    for name in set(used):
        os.chmod(name, 0o700)
        wait_until(lambda name=name: may_be_written(name), what="the workers of the first run have ended")
        with open(name, "r+b") as file:  # past all that could be told from its tables
            file.seek(os.path.getsize(name) // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
    said = machines.run()
    assert "version 1 weight 46 " in said and "counted 69" in said, said
    assert files(said) == used
    assert machines.log("there").count("is damaged and removed") == 3
    after = machines.copies()
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in after)


def test_a_driver_whose_program_was_replaced_is_told(machines):
    machines.start("there")
    driver = subprocess.Popen(
        [str(machines.driver), machines.address, "there", "wait"],
        env=machines.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout.readline() == "ready\n"
    shutil.copy(BUILT / "weft_test_travels_2", machines.program / "new")
    os.rename(machines.program / "new", machines.driver)
    said = driver.communicate("go\n", timeout=SECONDS + 20)[0]
    assert re.search(r"error .*cannot be run on node 2 \(there\)", said), said
    assert f"{machines.driver} was replaced since the driver started" in said, said
    assert "start the driver again" in said


def caravan(machines, library: Path) -> str:
    host, caravan = machines.program / "weft_test_caravan_host", machines.program / "libweft_test_caravan.so"
    done = subprocess.run(
        [str(host), str(caravan), machines.address, "there", str(library)],
        env=machines.environment(),
        cwd=machines.program,
        capture_output=True,
        text=True,
        timeout=SECONDS + 20,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_libraries_of_tasks_are_sent(machines):
    machines.start("there")
    used = files(caravan(machines, machines.program / "libweft_test_caravan.so"))
    # The program `weft` is there; the library, and libweft.so that it needs, are not.
    assert used[0] == str(WEFT)
    sent = {name for name in used if name.startswith(str(machines.cache))}
    assert len(sent) == 2 and len(machines.copies()) == 2, used


def test_a_foreign_architecture_is_refused(machines):
    machines.start("there")
    foreign = machines.program / "libforeign.so"
    content = bytearray((machines.program / "libweft_test_caravan.so").read_bytes())
    content[18:20] = struct.pack("<H", 183)  # e_machine: AArch64
    foreign.write_bytes(content)
    said = caravan(machines, foreign)
    assert re.search(r"error .*the driver's program cannot be run on node 2 \(there\): ", said), said
    assert f"{foreign} is for AArch64 (64 bit), and this machine is x86-64 (64 bit)" in said, said
    assert not machines.cache.exists()


def test_a_full_disk_is_told(machines):
    # A home of 256 kB.
    machines.start("there")
    daemon = machines.daemons[-1]
    subprocess.run(
        ["nsenter", f"--mount=/proc/{daemon.pid}/ns/mnt", "mount", "-t", "tmpfs", "-o", "size=256k", "none"]
        + [str(machines.homes["there"])],
        check=True,
    )
    said = machines.run()
    assert re.search(
        r"error .*travels \(build [0-9a-f]{12}, \d+ kB\) is not there, and a copy cannot be kept: ", said
    ), said
    assert "has no room for it" in said, said


def test_a_detached_actor_lives_on_without_its_driver(machines):
    machines.start("there")

    def process(mode: str) -> int:
        said = machines.run(mode)
        assert said.startswith("process "), said
        return int(said.split()[1])

    first = process("leave")
    assert os.readlink(f"/proc/{first}/exe").startswith(str(machines.cache))
    assert process("visit") == first
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{first}"), what="it has ended")
    again = process("visit")
    assert again != first
    assert os.readlink(f"/proc/{again}/exe").startswith(str(machines.cache))


def test_a_driver_that_goes_meanwhile_does_no_harm(machines):
    daemon = machines.start("there")
    for _ in range(3):
        driver = subprocess.Popen(
            [str(machines.driver), machines.address, "there", "wait"],
            env=machines.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert driver.stdout.readline() == "ready\n"
        driver.stdin.write("go\n")
        driver.stdin.flush()
        driver.kill()
        driver.communicate(timeout=SECONDS)
    assert "version 1 weight 46 " in machines.run()
    assert daemon.poll() is None
    wait_until(lambda: not list(machines.cache.glob("incoming-*")), what="nothing is half-written")
