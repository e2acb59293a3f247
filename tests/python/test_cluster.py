"""Cluster nodes: `weft start`, `weft stop`, programs that join, tasks on other nodes.

Nodes run on this machine, with a home of their own, so that they leave the user who runs the tests alone.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
import weft

SECONDS = 20


class Nodes:
    """What one test has started."""

    def __init__(self, home) -> None:
        self.home = home
        self.environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        self.address = ""
        self.pids: list = []

    def run(self, *arguments, check=True, **environment) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "weft"), *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def start(self, *arguments) -> int:
        """The node daemon's pid."""
        before = self.sockets()
        if self.address:
            self.run("start", f"--address={self.address}", *arguments)
        else:
            said = self.run("start", "--head", "--port=0", *arguments).stdout
            self.address = re.search(r"the head of the cluster (\S+)", said)[1]
        (pid,) = self.sockets() - before
        self.pids.append(pid)
        return pid

    def sockets(self) -> set:
        with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
            names = re.findall(rf" @weft-node-{os.geteuid()}-(\d+)-(\S+)/\d+$", file.read(), re.MULTILINE)
        return {int(pid) for pid, address in names if not self.address or address == self.address}

    def program(self, text: str, **kwargs) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", f"import weft\nweft.init(address={self.address!r})\n" + textwrap.dedent(text)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **kwargs,
        )

    def output_of(self, text: str) -> str:
        out, err = self.program(text).communicate(timeout=SECONDS)
        assert not err, err
        return out

    def children(self) -> list:
        """Processes of the nodes, the daemons not included."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()]
        found, parents = [], {str(pid) for pid in self.pids}
        while parents:
            level = [row for row in rows if row[1] in parents]
            found += level
            parents = {row[0] for row in level}
        return found

    def end(self) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def until(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    made.end()


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return True


def test_a_program_joins_a_cluster_node_and_leaves_nothing_there(nodes):
    nodes.start("--num-cpus=2")
    program = """
        @weft.remote
        def double(x):
            return 2 * x

        print(weft.get([double.remote(i) for i in range(100)])[-1])
    """
    assert nodes.output_of(program) == "198\n"
    until(lambda: not nodes.children())
    assert nodes.output_of(program) == "198\n"  # the node is there for the next
    assert "has ended" in nodes.run("stop", f"--address={nodes.address}").stdout
    assert not nodes.sockets()


@pytest.mark.parametrize("name", ["two words", "line\n", "x" * 256])
def test_a_head_whose_name_no_node_may_have_says_so_and_ends(nodes, name):
    done = nodes.run("start", "--head", "--port=0", f"--name={name}", check=False)
    assert done.returncode == 1
    assert done.stderr == "weft start: a node's name has 1 to 255 characters without spaces: weft start --name=...\n"
    log = "".join(file.read_text() for file in (nodes.home / "weft").glob("*.log"))
    (pid,) = {int(pid) for pid in re.findall(r" (\d+) membership: ", log)}
    until(lambda: gone(pid))


def test_several_programs_share_a_node_and_one_that_is_killed_leaves_nothing(nodes):
    nodes.start("--num-cpus=2")
    lasting = nodes.program(
        """
        import time

        @weft.remote
        def hold():
            print("holds", flush=True)
            time.sleep(600)

        weft.get(hold.remote())
        """
    )
    assert "holds" in lasting.stdout.readline() + lasting.stderr.readline()
    print_one = "print(weft.get(weft.remote(lambda: 1).remote()))"
    assert nodes.output_of(print_one) == "1\n"
    assert nodes.children()
    lasting.kill()
    lasting.communicate()
    until(lambda: not nodes.children())
    assert nodes.output_of(print_one) == "1\n"


def test_a_program_that_ends_while_its_workers_start_leaves_none(nodes):
    nodes.start("--num-cpus=4")
    for i in range(25):
        # At a moment of its own each, while workers are forked: the length is what is tested.
        moment = 0.02 + 0.004 * (i % 20)
        nodes.program(f"import os, time; time.sleep({moment}); os._exit(0)").communicate(timeout=SECONDS)
        until(lambda: not nodes.children())


SPREAD = """
    import os
    import time

    @weft.remote
    def where():
        time.sleep(0.1)
        with open(f"/proc/{os.getppid()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])

    print(sorted(set(weft.get([where.remote() for _ in range(12)]))))
"""


def test_tasks_run_on_every_node(nodes):
    pids = [nodes.start("--num-cpus=1", "--name=one"), nodes.start("--num-cpus=2", "--name=two")]
    pids.append(nodes.start("--num-cpus=1", "--name=three"))
    assert eval(nodes.output_of(SPREAD)) == sorted(pids)
    until(lambda: not nodes.children())


def test_a_task_for_a_resource_of_another_node(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    program = SPREAD.replace("@weft.remote", '@weft.remote(resources={"lamp": 1})')
    assert eval(nodes.output_of(program)) == [second]


def test_nodes_with_addresses_of_ipv6(nodes):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    nodes.start("--num-cpus=1", "--host=::1")
    assert nodes.address.startswith("[::1]:")
    nodes.start("--num-cpus=1", "--host=[::1]", "--name=other", "--resource=lamp=1")
    program = """
        @weft.remote(resources={"lamp": 1})
        def shine(x):
            return 2 * x

        print(weft.get(shine.remote(21)))
    """
    assert nodes.output_of(program) == "42\n"


def test_values_references_and_nested_tasks_cross_nodes(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=2")
    assert nodes.output_of(
        """
        @weft.remote(num_cpus=0, resources={"lamp": 1})
        def add(x, y):
            return x + y

        @weft.remote(num_cpus=0, resources={"lamp": 1})
        def nested(box):
            return weft.get(add.remote(box[0], 1))

        three = weft.put(3)
        print(weft.get(add.remote(three, add.remote(1, 1))), weft.get(nested.remote([three])))
        """
    ) == ("5 4\n")


def test_tasks_on_another_node_call_an_actor_of_this_one(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=2", "--name=two", "--resource=lamp=2")
    assert nodes.output_of(
        """
        @weft.remote
        class Counter:
            def __init__(self):
                self.count = 0

            def add(self, by):
                self.count += by
                return self.count

        @weft.remote(resources={"lamp": 1})
        def add(counter, times):
            for _ in range(times):
                last = counter.add.remote(1)
            return weft.get(last) > 0

        counter = Counter.remote()
        print(weft.get([add.remote(counter, 50) for _ in range(4)]), weft.get(counter.add.remote(0)))
        """
    ) == ("[True, True, True, True] 200\n")


def test_an_exception_on_another_node_is_raised_as_itself(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    nodes.start("--num-cpus=1", "--name=two", "--resource=lamp=1")
    assert nodes.output_of(
        """
        @weft.remote(resources={"lamp": 1})
        def fail():
            raise KeyError("lost")

        try:
            weft.get(fail.remote())
        except KeyError as error:
            print(type(error).__mro__[1:3], error.args)
        """
    ).endswith("('lost',)\n")


def test_work_of_a_killed_node_runs_elsewhere(nodes, tmp_path):
    nodes.start("--num-cpus=1", "--name=one")
    second = nodes.start("--num-cpus=1", "--name=two")
    program = nodes.program(
        f"""
        import os, time

        @weft.remote
        def slow(i):
            open({str(tmp_path)!r} + f"/{{i}}-{{os.getppid()}}", "w").close()
            if i < 2:
                while not os.path.exists({str(tmp_path / "go")!r}):
                    time.sleep(0.01)
            return i

        print(sorted(weft.get([slow.remote(i) for i in range(20)])))
        """
    )
    until(lambda: len({name.split("-")[1] for name in os.listdir(tmp_path) if name[:2] in ("0-", "1-")}) == 2)
    os.kill(second, signal.SIGKILL)
    until(lambda: gone(second))
    (tmp_path / "go").touch()
    out, err = program.communicate(timeout=SECONDS)
    assert out == f"{list(range(20))}\n", err


def test_a_node_with_another_token_is_refused(nodes, tmp_path):
    nodes.start("--num-cpus=1")
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "token").write_text("f" * 64 + "\n")
    (other / "token").chmod(0o600)
    refused = nodes.run("start", f"--address={nodes.address}", f"--token-file={other / 'token'}", check=False)
    assert refused.returncode == 1
    assert "token" in refused.stderr
    (other / "token").chmod(0o644)
    readable = nodes.run("start", f"--address={nodes.address}", f"--token-file={other / 'token'}", check=False)
    assert readable.returncode == 1
    assert "0600" in readable.stderr or "others" in readable.stderr


def test_a_name_that_is_taken_is_refused(nodes):
    nodes.start("--num-cpus=1", "--name=one")
    refused = nodes.run("start", f"--address={nodes.address}", "--name=one", check=False)
    assert refused.returncode == 1
    assert "the name one belongs to node 1" in refused.stderr


def test_an_address_where_nobody_listens_or_somebody_else(nodes):
    nodes.start("--num-cpus=1")  # makes the token
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        nobody = nodes.run("start", f"--address={address}", "--name=other", check=False)
        assert nobody.returncode == 1
        assert address in nobody.stderr


def test_the_token_is_nowhere_to_be_seen(nodes, tmp_path):
    pid = nodes.start("--num-cpus=1")
    token = (tmp_path / ".weft" / "token").read_text().strip()
    assert len(token) == 64
    assert (tmp_path / ".weft" / "token").stat().st_mode & 0o777 == 0o600
    for name in ("cmdline", "environ"):
        with open(f"/proc/{pid}/{name}", "rb") as file:
            assert token.encode() not in file.read()
    for log in (tmp_path / "weft").iterdir():
        assert log.stat().st_mode & 0o077 == 0
        assert token not in log.read_text()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["start"], "say either --head or --address"),
        (["start", "--head", "--address=a:1"], "say either --head or --address"),
        (["start", "--head", "--num-cpus=-1"], "--num-cpus must be a whole number"),
        (["start", "--head", "--num-cpus=lots"], "--num-cpus must be a whole number"),
        (["start", "--head", "--port=70000"], "at most 65535"),
        (["start", "--head", "--resource=lamp"], "NAME=N"),
        (["start", "--head", "--nonsense"], "no option '--nonsense'"),
        (["start", "--address=nowhere"], "nowhere"),
        (["start", "--address=192.0.2.1:6380"], "the other nodes must reach this one, too: say --host="),
        (["start", "--head", "--host=0.0.0.0"], "'0.0.0.0' is none"),
        (["stop", "--all"], "no option '--all'"),
    ],
)
def test_wrong_usage(nodes, arguments, words):
    wrong = nodes.run(*arguments, check=False)
    assert wrong.returncode == 2
    assert words in wrong.stderr


def test_joining_what_is_not_there(no_session, nodes):
    with pytest.raises(Exception, match=r"no node of the cluster 127.0.0.1:1 runs on this machine.*weft start"):
        weft.init(address="127.0.0.1:1")
    with pytest.raises(ValueError, match="auto"):
        weft.init(address="nonsense")
    with pytest.raises(ValueError, match="num_cpus: the cluster .* has what its nodes have"):
        weft.init(address="127.0.0.1:1", num_cpus=2)
    assert not weft.is_initialized()
