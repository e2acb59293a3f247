"""The walk of docs/user/cluster.md, word for word: two machines with ssh, then a cluster that lasts, with a Redis on a
third.

The machines are namespaces: each has a network, a host name, processes, a home and a /tmp of its own, an sshd with keys
made here, and what the page asks for. A shell on each is given the page's blocks, in the page's order, and what the
page shows as output is compared. systemd is not there: `systemctl` is a stand-in that runs what a unit says, and starts
it again when it fails.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import namespaces
import pytest
from test_installation import repack

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
PAGE = ROOT / "docs" / "user" / "cluster.md"
SECONDS = 60
NAMES = ["one", "two", "three"]
WHERE = {"first": [0], "second": [1], "third": [2], "both": [0, 1], "either": [0, 1]}
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir)


def why_not() -> str:
    if missing := namespaces.why_not():
        return missing
    if not (BUILD / "build.ninja").exists():
        return "needs the folder that `make build` fills"
    for program, path in (("sshd", SSHD), *((name, shutil.which(name)) for name in ("ssh", "redis-server", "openssl"))):
        if path is None:
            return f"there is no program {program}"
    if not Path("/etc/redis/redis.conf").exists():
        return "there is no /etc/redis/redis.conf, as Debian has it"
    done = subprocess.run(
        ["unshare", "--mount", "--uts", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True, text=True,
    )  # fmt: skip
    return f"no namespaces for machines: {done.stderr.strip()}" if done.returncode != 0 else ""


pytestmark = [pytest.mark.timeout(400), pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is possible")]


# ---- the page -------------------------------------------------------------------------------------------------------


class Block:
    """A block of the walk: a file to write, or lines for the shells of some machines, and what those print."""

    def __init__(self, step: str, language: str, text: str, before: str) -> None:
        self.step, self.language, self.text = step, language, text
        self.printed: str | None = None
        found = re.findall(r"on (?:the )?(first|second|third|both|either) machine", before, re.I)
        assert found, f"{step}: nobody says on which machine this is done:\n{text}"
        self.machines = WHERE[found[-1].lower()]
        named = re.search(r"`([\w.]+)`, on the", before)
        self.file = named[1] if named else ""
        assert bool(self.file) == (language != "sh"), f"{step}: a file has a name, commands have none:\n{text}"


def walk() -> list:
    text = PAGE.read_text()
    text = text[text.index("\n## A cluster of two machines") : text.index("\n## Start")]
    blocks: list = []
    step = ""
    parts = re.split(r"^```(\w*)\n(.*?)^```\n", text, flags=re.M | re.S)
    for before, language, content in zip(parts[0::3], parts[1::3], parts[2::3]):
        for heading in re.findall(r"^### (.*)$", before, re.M):
            step = heading
        if language == "text":
            assert blocks[-1].printed is None and not before.strip(), f"{step}: whose output is this?"
            blocks[-1].printed = content
        else:
            blocks.append(Block(step, language, content, before.strip().rpartition("\n\n")[2]))
    return blocks


# ---- machines -------------------------------------------------------------------------------------------------------

# Process 1 of a machine: makes it look like one, and starts its sshd and its shell. Everything ends with the shell.
INIT = """
import json, os, socket, subprocess, sys
it = json.loads(sys.argv[1])
socket.sethostname(it["name"])
for what, where in it["binds"]:
    subprocess.run(["mount", "--rbind", what, where], check=True)
for folder in ("/tmp", "/run"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", folder], check=True)
os.chmod("/tmp", 0o1777)
os.mkdir("/run/sshd", 0o755)
os.chdir(it["home"])
subprocess.Popen([it["sshd"], "-D", "-e", "-f", it["home"] + "/.sshd/config"],
                 stdin=subprocess.DEVNULL, stdout=open(it["home"] + "/.sshd/log", "w"), stderr=subprocess.STDOUT)
shell = subprocess.Popen(["bash", "--norc", "-e"], env=it["environment"])
while os.wait()[0] != shell.pid:  # whoever has lost its parent is reaped here, too
    pass
"""

# What `systemctl` does here. A service is a process that starts what the unit says, again and again while that fails.
SYSTEMCTL = """#!/usr/bin/env python3
import os, re, shlex, signal, subprocess, sys, time

home = os.environ["HOME"]
names = [word for word in sys.argv[1:] if not word.startswith("-")]
verb, names = names[0], names[1:]
assert verb in ("enable", "start", "stop", "restart"), verb

def command(name):
    if name == "redis-server":
        return ["redis-server", "/etc/redis/redis.conf", "--daemonize", "no", "--pidfile", "/run/redis.pid"]
    text = open(f"{home}/.config/systemd/user/{name}.service").read().replace("\\\\\\n", " ").replace("%h", home)
    assert "Restart=on-failure" in text and "WantedBy=default.target" in text
    return shlex.split(re.search("^ExecStart=(.*)$", text, re.M)[1])

def serve(name):
    if os.fork():
        return
    os.setsid()
    log = open(f"{home}/{name}.log", "a")
    for number in (0, 1, 2):
        os.dup2(log.fileno() if number else os.open(os.devnull, os.O_RDONLY), number)
    while True:
        # systemd ends whatever a service has started; a process group is near enough.
        running = subprocess.Popen(command(name), start_new_session=True)
        with open(f"{home}/.{name}.new", "w") as file:
            file.write(f"{os.getpid()} {running.pid}")
        os.rename(f"{home}/.{name}.new", f"{home}/.{name}.pid")
        if running.wait() == 0:
            os._exit(0)
        time.sleep(2)  # RestartSec

def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

def stop(name):
    try:
        keeper, running = map(int, open(f"{home}/.{name}.pid").read().split())
    except FileNotFoundError:
        return
    for kill, pid, number in ((os.kill, keeper, signal.SIGKILL), (os.killpg, running, signal.SIGTERM)):
        try:
            kill(pid, number)
        except ProcessLookupError:
            pass
    while alive(running):
        time.sleep(0.01)
    os.unlink(f"{home}/.{name}.pid")

for name in names:
    if verb in ("stop", "restart"):
        stop(name)
    if verb != "stop":
        serve(name)
"""


class Machine:
    def __init__(self, network_machine, name: str, folder: Path, key: Path) -> None:
        self.name, self.address = name, network_machine.address
        self.home = folder / name
        ours = self.home / ".sshd"
        for made in (self.home, ours, self.home / ".ssh", self.home / ".stand-ins"):
            made.mkdir(mode=0o700)
        # ssh: keys that are made here, and a config of its own. Nothing of the user's or the system's is looked at.
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(ours / "key")], check=True, timeout=20
        )
        shutil.copy(key, self.home / ".ssh" / "id_ed25519")
        shutil.copy(f"{key}.pub", self.home / ".ssh" / "authorized_keys")
        (self.home / ".ssh" / "config").write_text("StrictHostKeyChecking accept-new\n")
        (ours / "config").write_text(
            f"HostKey {HOME}/.sshd/key\nPort 22\nListenAddress {self.address}\nUsePAM no\nPermitRootLogin yes\n"
            f"PasswordAuthentication no\nPidFile none\nSubsystem sftp internal-sftp\n"
            f"AuthorizedKeysFile .ssh/authorized_keys\n"
        )
        self._stand_in("systemctl", SYSTEMCTL)
        self._stand_in("loginctl", "#!/bin/sh\n")
        self._stand_in("sudo", '#!/bin/sh\nexec "$@"\n')
        binds = [(str(self.home), str(HOME))]
        base = Path(sys.base_prefix)
        if HOME in base.parents:  # a Python that was installed at home
            inside = self.home / base.relative_to(HOME)
            inside.mkdir(parents=True)
            binds.insert(0, (str(base), str(inside)))
        if name == "three":
            for path in ("/etc/redis", "/var/lib/redis", "/var/log/redis"):
                copy = folder / f"three-{path.replace('/', '-')}"
                copy.mkdir(mode=0o755)
                if path == "/etc/redis":
                    shutil.copy("/etc/redis/redis.conf", copy)
                binds.append((str(copy), path))
        environment = {
            "HOME": str(HOME), "USER": pwd.getpwuid(os.geteuid()).pw_name, "LANG": "C.UTF-8", "TERM": "dumb",
            "PATH": f"{HOME}/.stand-ins:{base}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{HOME}/packages", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }  # fmt: skip
        settings = {"name": name, "binds": binds, "home": str(HOME), "sshd": SSHD, "environment": environment}
        self.shell = subprocess.Popen(
            network_machine.command(
                *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
                *(sys.executable, "-c", INIT, json.dumps(settings)),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _stand_in(self, name: str, text: str) -> None:
        path = self.home / ".stand-ins" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, text: str) -> str:
        """What it prints; fails if one of the commands does."""
        (self.home / ".block").write_text(text)
        end = "-- the block has ended --"
        try:
            self.shell.stdin.write(f"source ~/.block < /dev/null; echo '{end}'\n")
            self.shell.stdin.flush()
        except BrokenPipeError:
            pass
        printed = ""
        while line := self.shell.stdout.readline():
            if line == f"{end}\n":
                return printed
            printed += line
        raise AssertionError(f"on {self.name} this failed:\n{text}\n{printed}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.home.glob("*.log")))

    def close(self) -> None:
        self.shell.stdin.close()
        self.shell.kill()  # --kill-child: its process 1 goes with it, and all others with that
        self.shell.wait(SECONDS)
        self.shell.stdout.close()


@pytest.fixture
def machines(tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=20)
    made: list = []
    with namespaces.Network(3) as network:
        try:
            for name, machine in zip(NAMES, network.machines):
                made.append(Machine(machine, name, tmp_path, key))
            wheel = [sys.executable, ROOT / "scripts" / "wheel.py", BUILD, made[0].home]
            subprocess.run(wheel, check=True, timeout=2 * SECONDS, stdout=subprocess.DEVNULL)
            for machine in made[:2]:
                (machine.home / "packages").mkdir()
                repack("cloudpickle", machine.home / "packages")
            for machine in made:
                machine.run(f"until (exec 3<>/dev/tcp/{machine.address}/22) 2> /dev/null; do sleep 0.05; done")
            yield made
        finally:
            for machine in made:
                machine.close()


def agrees(printed: str, shown: str) -> bool:
    """Three dots in what the page shows stand for anything."""
    pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, printed.strip(), re.S) is not None


def test_the_user_of_redis_has_the_rights_that_weft_needs():
    """The same as in docs/control_store.md, which has a test of its own."""
    needed = re.search(r"ACL SETUSER weft on >PASSWORD (.*)", (ROOT / "docs" / "control_store.md").read_text())[1]
    assert re.search(r"^user weft on #\$\(.*?\) (.*)$", PAGE.read_text(), re.M)[1] == needed


def test_the_walk_word_for_word(machines):
    blocks = walk()
    assert [block.step.partition(".")[0] for block in blocks if block.language == "sh"][-1] == "13"
    prefix = machines[0].address.rpartition(".")[0]

    def ours(text: str) -> str:
        return re.sub(r"\b10\.0\.0\.(?=[123]\b)", f"{prefix}.", text)

    for block in blocks:
        for machine in (machines[number] for number in block.machines):
            if block.file:
                (machine.home / block.file).write_text(ours(block.text))
                continue
            looks = block.text == "weft status\n"
            printed = machine.run("weft status 2>&1 || true" if looks else ours(block.text))
            if block.printed is None:
                continue
            # A service that was just started needs a moment; to look twice does no harm.
            deadline = time.monotonic() + SECONDS
            while looks and not agrees(printed, ours(block.printed)) and time.monotonic() < deadline:
                printed = machine.run("weft status 2>&1 || true")
            others = "\n".join(each.logs() for each in machines)
            assert agrees(printed, ours(block.printed)), f"{block.step}, {block.text}\n{printed}\n{others}"
